"""How long a voice takes from ``Open`` to ``Opened``, by where it is found.

An engine in this process, no wire. A round asks for one voice five times: *new* (its recording
goes through the codec), *hot* (its KV is on the device), *warm* (another voice pushed its KV out;
it is copied back from the host's memory), *codes* (others pushed it out of there too; it is
prefilled again from its codes in memory) and *cold* (its codes are on disk). Every ask is checked
against the engine's own counts: one that was not served from where it should have been ends the run
with status 1.

Printed beside it: the bytes of such a prefix and, on a GPU, the time in which as much pinned memory
can be copied at best.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np
import soundfile  # pyright: ignore[reportMissingTypeStubs]
import torch

from shoal.engine.api import (
    Cancel,
    EngineStats,
    Event,
    Failed,
    Open,
    Opened,
    Reference,
    StreamId,
    Voice,
)
from shoal.engine.config import BUILTIN_VOICE, EngineConfig, Limits
from shoal.engine.loading import load_model
from shoal.engine.service import SpeechEngine

from .bench_turn import machine

KINDS = ("new", "hot", "warm", "codes", "cold")
OTHERS = 5
"""Voices that are asked for to push one out of the host's memory, but not its codes."""
WARM = 3.3
"""Voices whose KV the host's memory holds, about: more than one, fewer than there are others."""
CODES = OTHERS + 1.5
"""Voices whose codes are held."""
ALL = int(CODES) + 1
"""Voices that push one out of everything but the disk."""
_FRAMING = 80
"""Positions of a prefix that are neither sound nor transcript, about."""
ENOUGH_S = 120.0
SAVED_S = 0.2
"""In which a voice has surely been copied to the host."""
RATE = 24_000
LETTERS_PER_S = 14


class WrongTier(Exception):
    """A voice did not come from where it was meant to come from."""


@dataclass(slots=True)
class Times:
    """Seconds by kind, one a round."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    prefix_bytes: int = 0


def recording(number: int, seconds: float) -> bytes:
    """A wav file of a buzz whose pitch and loudness move as a speaker's do; no two are alike."""
    rng = np.random.default_rng(number)
    times = np.arange(int(RATE * seconds)) / RATE
    pitch = 120 + 40 * rng.random() + 30 * np.sin(2 * np.pi * (0.4 + rng.random()) * times)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    buzz = sum(np.sin(k * phase) / k for k in range(1, 12))
    syllables = np.clip(np.sin(2 * np.pi * (3 + rng.random()) * times), 0, 1)
    wave = 0.2 * buzz * syllables + 0.002 * rng.standard_normal(len(times))
    file = io.BytesIO()
    soundfile.write(file, wave.astype(np.float32), RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def voice(number: int, seconds: float) -> Voice:
    words = "a voice that nobody has heard before and that says so "
    text = (words * (1 + int(seconds * LETTERS_PER_S / len(words))))[: int(seconds * LETTERS_PER_S)]
    return Voice(references=(Reference(recording(number, seconds), f"{text} {number}."),))


class Desk:
    """An engine and one who opens streams on it, one after another."""

    def __init__(self, engine: SpeechEngine) -> None:
        self._engine = engine
        self._events: SimpleQueue[Event | BaseException] = SimpleQueue()
        self._streams = 0
        engine.start(self._deliver, self._events.put)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            self._events.put(event)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def ask(self, asked: Voice) -> float:
        """Seconds from ``Open`` to ``Opened``; the stream is gone afterwards.

        :raises WrongTier: it failed.
        """
        self._streams += 1
        stream = StreamId(self._streams)
        began = time.perf_counter()
        self._engine.submit(Open(stream, asked))
        while True:
            try:
                event = self._events.get(timeout=ENOUGH_S)
            except Empty:
                raise WrongTier(f"no answer within {ENOUGH_S:g} s") from None
            match event:
                case Opened(stream=answered) if answered == stream:
                    took = time.perf_counter() - began
                    self._engine.submit(Cancel(stream))
                    return took
                case Failed(message=message):
                    raise WrongTier(message)
                case BaseException():
                    raise WrongTier("the engine died") from event
                case _:
                    continue


def measure(desk: Desk, rounds: int, seconds: float) -> Times:
    """:raises WrongTier: see there."""
    times = Times()
    without = desk.stats().hot.bytes  # the default voice's
    others = [voice(number, seconds) for number in range(1, 1 + ALL)]
    for number in range(-1, rounds):
        mine = voice(2 + ALL + number, seconds)
        took = {"new": _from("new", desk, mine), "hot": _from("hot", desk, mine)}
        times.prefix_bytes = max(times.prefix_bytes, desk.stats().hot.bytes - without)
        time.sleep(SAVED_S)
        desk.ask(others[0])
        took["warm"] = _from("warm", desk, mine)
        for other in others[:OTHERS]:
            desk.ask(other)
        took["codes"] = _from("codes", desk, mine)
        for other in others:
            desk.ask(other)
        took["cold"] = _from("cold", desk, mine)
        if number >= 0:  # the first round warms up what the engine's own warm-up left
            for kind, one in took.items():
                times.seconds[kind].append(one)
    return times


def _from(kind: str, desk: Desk, asked: Voice) -> float:
    before = _counts(desk.stats())
    took = desk.ask(asked)
    time.sleep(0.05)  # the counts are those of the decode thread's last turn
    after = _counts(desk.stats())
    grown = {name for name in after if after[name] > before[name]}
    if grown != COUNTED[kind]:
        raise WrongTier(f"a voice that should be {kind} counted as {sorted(grown)}")
    return took


COUNTED = {
    "new": {"encoded"},
    "hot": {"hot", "codes"},
    "warm": {"warm", "codes"},
    "codes": {"codes"},
    "cold": {"cold"},
}
"""What an ask counts as."""


def _counts(stats: EngineStats) -> dict[str, int]:
    return {
        "hot": stats.hot.hits,
        "warm": stats.warm.hits,
        "codes": stats.codes.hits,
        "cold": stats.cold.hits,
        "encoded": stats.encoded,
    }


def copy_s(size: int) -> tuple[float, float] | None:
    """Seconds to copy ``size`` bytes from pinned memory to the GPU, and back; None without one."""
    if not torch.cuda.is_available():
        return None
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    took: list[float] = []
    for target, source in ((device, host), (host, device)):
        best = float("inf")
        for _ in range(5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
        took.append(best)
    return took[0], took[1]


def pin_s(size: int) -> float:
    """Seconds to get ``size`` bytes of pinned memory."""
    began = time.perf_counter()
    torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return time.perf_counter() - began


def table(name: str, seconds: float, times: Times) -> str:
    lines = [f"{machine()}", f"{name}, references of {seconds:g} s; ms from Open to Opened"]
    lines.append(f"  {'voice':<6}{'p50':>10}{'min':>10}{'max':>10}")
    for kind, took in times.seconds.items():
        row = (np.median(took), min(took), max(took))
        lines.append(f"  {kind:<6}" + "".join(f"{1000 * value:>10.1f}" for value in row))
    lines.append(f"KV of such a voice: {times.prefix_bytes / 1e6:.1f} MB")
    copied = copy_s(times.prefix_bytes)
    if copied is not None:
        to, back = copied
        lines.append(f"  from pinned memory {1000 * to:.1f} ms, into it {1000 * back:.1f} ms")
        lines.append(f"  to pin a GiB takes {1000 * pin_s(1 << 30):.0f} ms")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=BUILTIN_VOICE, help="or random:s2-pro")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each recording")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(
            model=flags.model,
            device=flags.device,
            dtype=flags.dtype,
            slots=flags.slots,
            voices_dir=Path(folder),
            limits=Limits(prefix_bytes=0),
        )
        loaded = load_model(config, lambda line: print(line, file=sys.stderr))
        spec = loaded.runner.spec
        frames = flags.seconds * spec.sample_rate / spec.frame_samples
        letters = flags.seconds * LETTERS_PER_S
        pages = -(-(frames + letters + _FRAMING) // spec.page_tokens)
        config = replace(
            config,
            warm_voice_bytes=int(WARM * pages) * spec.page_bytes,
            codes_bytes=int(CODES * (4 * frames * spec.codebooks + letters)),
        )
        engine = SpeechEngine(config, model=loaded)
        try:
            times = measure(Desk(engine), flags.rounds, flags.seconds)
        except WrongTier as failure:
            print(f"bench: {failure}", file=sys.stderr)
            return 1
        finally:
            engine.stop()
    print(table(engine.info.model, flags.seconds, times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
