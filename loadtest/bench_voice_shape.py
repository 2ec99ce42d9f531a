"""How a voice begins, pauses between the sentences of a turn, and ends: figures and pictures.

Whole turns through the engine as the server runs it, so that the seams are the listener's. Each
turn leaves a recording and a picture of its spectrum with a line at each seam.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import soundfile  # pyright: ignore[reportMissingTypeStubs]

from shoal.engine.api import (
    EndText,
    Event,
    Failed,
    Finished,
    Open,
    Pcm,
    PushText,
    Sampling,
    SegmentStarted,
    StreamId,
)
from shoal.engine.config import BUILTIN_VOICE, EngineConfig
from shoal.engine.service import SpeechEngine

from .sound_shape import Samples, edges, picture, seam
from .voice_table import Row, table

TURNS = (
    "The train to the coast leaves at a quarter past nine every morning. Please bring your ticket "
    "and something warm to wear on the platform. We should be back before it gets dark outside.",
    "Have you ever seen the northern lights from the deck of a ship? They move like curtains in a "
    "slow and silent wind. Nobody on board said a word until they had faded away.",
    "Your order was shipped on Monday and should arrive within three days. If nobody is at home, "
    "the driver will leave it with a neighbour. You can follow the parcel on our website.",
)
ENOUGH_S = 120.0


class NoTurn(Exception):
    """The engine did not speak a turn; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """``samples`` at ``rate``; ``seams`` are the samples at which a further sentence begins."""

    samples: Samples
    rate: int
    seams: tuple[int, ...]


def speak_turns(model: Path, texts: Sequence[str], seed: int) -> list[Turn]:
    """Raises :class:`NoTurn`."""
    engine = SpeechEngine(EngineConfig(model=model, device="cpu", slots=1))
    events: SimpleQueue[Event | BaseException] = SimpleQueue()

    def deliver(batch: Sequence[Event]) -> None:
        for event in batch:
            events.put(event)

    engine.start(deliver, events.put)
    try:
        return [
            _turn(engine, events, StreamId(number), text, seed + number)
            for number, text in enumerate(texts, 1)
        ]
    finally:
        engine.stop()


def _turn(
    engine: SpeechEngine,
    events: SimpleQueue[Event | BaseException],
    stream: StreamId,
    text: str,
    seed: int,
) -> Turn:
    engine.submit(Open(stream, sampling=Sampling(seed=seed)))
    engine.submit(PushText(stream, text))
    engine.submit(EndText(stream))
    sound: list[bytes] = []
    seams: list[int] = []
    while True:
        try:
            event = events.get(timeout=ENOUGH_S)
        except Empty:
            raise NoTurn(f"nothing more within {ENOUGH_S:g} s") from None
        match event:
            case Pcm(samples=samples):
                sound.append(samples)
            case SegmentStarted(at_samples=at):
                seams.append(at)
            case Finished():
                samples = (np.frombuffer(b"".join(sound), "<i2") / 32768).astype(np.float32)
                return Turn(samples, engine.info.sample_rate, tuple(seams[1:]))
            case Failed(message=message):
                raise NoTurn(message)
            case BaseException():
                raise NoTurn("the engine died") from event
            case _:
                continue


def rows_of(turns: Sequence[Turn]) -> list[Row]:
    """What is wanted here is this project's own: what a listener does not notice."""
    ends = [edges(turn.samples, turn.rate) for turn in turns]
    seams = [seam(turn.samples, turn.rate, at) for turn in turns for at in turn.seams]
    pauses = [found.pause_s for found in seams]
    rows = [
        Row("silence before the first word, longest", max(e.lead_s for e in ends), "s", 0.25),
        Row("loudness before the first word, worst", max(e.lead_db for e in ends), "dB", -45.0),
        Row("silence behind the last word, longest", max(e.trail_s for e in ends), "s", 0.6),
        Row("loudness behind the last word, worst", max(e.trail_db for e in ends), "dB", -45.0),
        Row("last sample, share of full scale, worst", max(e.last for e in ends), "", 0.01),
    ]
    if not seams:
        return [*rows, Row("seams", None, "", note="no turn had two sentences")]
    worst = max(found.jump / max(1e-6, found.usual) for found in seams)
    return [
        *rows,
        Row("step at a seam over one in a thousand in speech, worst", worst, "", 1.0),
        Row("pause at a seam, shortest", min(pauses), "s", at_least=0.05),
        Row("pause at a seam, longest", max(pauses), "s", 0.9, note=f"{len(seams)} seams"),
        Row("loudness of a pause, worst", max(found.pause_db for found in seams), "dB", -45.0),
    ]


def measure_shape(model: Path, out: Path, seed: int) -> list[Row]:
    """Also leaves ``turn1.wav``, ``turn1.png`` ... in ``out``. Raises :class:`NoTurn`."""
    turns = speak_turns(model, TURNS, seed)
    out.mkdir(parents=True, exist_ok=True)
    write: Any = soundfile.write  # pyright: ignore[reportUnknownMemberType]
    for number, turn in enumerate(turns, 1):
        write(out / f"turn{number}.wav", turn.samples, turn.rate, subtype="PCM_16")
        (out / f"turn{number}.png").write_bytes(picture(turn.samples, turn.rate, turn.seams))
    return rows_of(turns)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -P -m shoal.loadtest.bench_voice_shape", description=__doc__
    )
    parser.add_argument("--model", type=Path, default=BUILTIN_VOICE)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(argv)
    try:
        rows = measure_shape(flags.model, flags.out, flags.seed)
    except (NoTurn, ValueError) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
