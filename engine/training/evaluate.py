"""The ``eval`` command: what a finished voice says, as recordings to listen to and to be measured.

Runs the engine itself: its front end, prompts, sampler and codec, on the CPU. ``tts`` speaks every
line of a text file, without a reference or like each recording given; ``codec`` takes teacher
speech through the codec and back. Both leave a folder for each voice with ``00.wav``, ``01.wav``
... and ``texts.txt``, which ``python -m shoal.loadtest.asr_wer --recordings`` listens to.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr
import torch

from ..checkpoint import VoiceConfig, read_voice_config
from ..codec import Codec, decode_codes, encode_codes, load_codec
from ..cpu_runner import CpuRunner
from ..frontend import make_frontend
from ..model.config import read_config
from ..prompt import PromptBuilder, PromptReference
from ..runner import Int32Array, Join, PrefillChunk, SlotSampling, StepPlan
from ..tokenizer import load_tokenizer
from .speech import read_speech
from .texts import read_texts

SLOTS = 8
PAGE_TOKENS = 64
FRAMES_LEFT = 60
FRAMES_A_LETTER = 2.6
"""An utterance that has not ended after ``FRAMES_LEFT`` and this for each letter is a runaway."""
SHORTEST = 0.5
"""An utterance below this share of the usual frames a letter was cut off."""


@dataclass(slots=True, eq=False)
class Utterance:
    """``codes`` int32 [frames, K] of ``text``; ``ended`` by itself."""

    text: str
    prompt: Int32Array
    seed: int
    codes: list[Int32Array] = field(default_factory=list[Int32Array])
    ended: bool = False

    @property
    def limit(self) -> int:
        return FRAMES_LEFT + int(FRAMES_A_LETTER * len(self.text))


class Speaker:
    """A voice folder in the engine, without the server around it."""

    def __init__(self, folder: Path, slots: int = SLOTS) -> None:
        self._runner = CpuRunner.load(folder, slots=slots, page_tokens=PAGE_TOKENS)
        config = read_config(folder)
        self.voice: VoiceConfig = read_voice_config(folder, max_seq_len=config.max_seq_len)
        tokenizer = load_tokenizer(folder)
        semantic = config.semantic_ids(tokenizer.semantic)
        self._prompt = PromptBuilder(tokenizer, config.codebooks, semantic)
        name = self.voice.frontend
        self._frontend = make_frontend(None if name == "none" else name)
        self._pages = self._runner.spec.pages // slots
        self._slots, self._steps = slots, 0
        self._runner.warm_up()

    def close(self) -> None:
        self._runner.close()

    def utterances(
        self, texts: Sequence[str], references: Sequence[PromptReference], seed: int
    ) -> list[Utterance]:
        """One for each text, as the front end writes it."""
        prefix = self._prompt.prefix(references)
        longest = self.voice.max_segment_chars or 1000
        return [
            Utterance(
                text,
                np.concatenate(
                    [prefix, self._prompt.user_turn(" ".join(self._frontend.inputs(text, longest)))]
                ),
                seed + number,
            )
            for number, text in enumerate(texts)
        ]

    def speak(self, utterances: Sequence[Utterance]) -> float:
        """Fills in ``codes``, as many at once as there are slots; returns seconds of work."""
        began_s = time.monotonic()
        waiting = list(utterances)
        live: dict[int, Utterance] = {}
        while waiting or live:
            joins: list[Join] = []
            for slot in range(self._slots):
                if waiting and slot not in live:
                    live[slot] = waiting.pop(0)
                    joins.append(self._join(slot, live[slot]))
            plan = StepPlan(self._steps, tuple(sorted(live)), tuple(joins))
            self._runner.launch(plan)
            result = self._runner.collect(self._steps)
            self._steps += 1
            for row, slot in enumerate(result.slots):
                utterance = live[slot]
                if result.ended[row]:
                    utterance.ended = True
                else:
                    utterance.codes.append(result.columns[row, 1:].copy())
                if utterance.ended or len(utterance.codes) >= utterance.limit:
                    del live[slot]
        return time.monotonic() - began_s

    def _join(self, slot: int, utterance: Utterance) -> Join:
        table = tuple(range(slot * self._pages, (slot + 1) * self._pages))
        self._runner.prefill(PrefillChunk(utterance.prompt[:-1], 0, table))
        voice = self.voice
        return Join(
            slot=slot,
            generation=0,
            position=len(utterance.prompt) - 1,
            draw=0,
            column=utterance.prompt[-1],
            table=table,
            sampling=SlotSampling(voice.temperature, voice.top_p, voice.top_k, utterance.seed),
        )


@dataclass(frozen=True, slots=True)
class Account:
    """What can be said of utterances without listening."""

    utterances: int
    runaways: int
    cut_off: int
    seconds: float
    work_s: float

    def __str__(self) -> str:
        return (
            f"{self.utterances} utterances, {self.runaways} runaways, {self.cut_off} cut off, "
            f"{self.seconds:.0f} s of sound, {self.work_s / max(1e-9, self.seconds):.2f} s of work "
            "a second"
        )


def cut_off(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Those that ended far too early for their letters, by what is usual among all."""
    lengths = np.array([max(1, len(u.text)) for u in utterances])
    frames = np.array([len(u.codes) for u in utterances])
    usual = float(np.median(frames / lengths))
    # A few letters say little about how long they take.
    short = (frames < SHORTEST * usual * lengths) & (lengths >= 12) | (frames == 0)
    return [u for u, odd in zip(utterances, short, strict=True) if odd and u.ended]


def account(utterances: Sequence[Utterance], frame_s: float, work_s: float) -> Account:
    return Account(
        len(utterances),
        sum(not u.ended for u in utterances),
        len(cut_off(utterances)),
        sum(len(u.codes) for u in utterances) * frame_s,
        work_s,
    )


def write_recordings(
    folder: Path, texts: Sequence[str], sounds: Sequence[npt.NDArray[np.float32]], rate: int
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, sound in enumerate(sounds):
        soundfile.write(folder / f"{number:02d}.wav", sound, rate, subtype="PCM_16")
    (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")


def read_recording(path: Path, rate: int) -> tuple[str, npt.NDArray[np.float32]]:
    """The transcript beside a recording (``.txt``), and its mono samples at ``rate``."""
    sound, own_rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono = soxr.resample(sound.mean(1), own_rate, rate).astype(np.float32)
    return path.with_suffix(".txt").read_text("utf-8").strip(), mono


def read_reference(path: Path, codec: Codec) -> PromptReference:
    text, sound = read_recording(path, codec.sample_rate)
    return PromptReference(text, encode_codes(codec, torch.from_numpy(sound)).numpy())


def speak_texts(flags: argparse.Namespace) -> int:
    """The ``tts`` part."""
    lines = [line for line in flags.texts.read_text("utf-8").splitlines() if line.strip()]
    lines = (lines * flags.times)[: flags.limit or None]
    codec = load_codec(flags.model)
    speaker = Speaker(flags.model, 1 if flags.alone else SLOTS)
    voices: list[tuple[str, list[PromptReference]]] = [("default", [])]
    if flags.reference:
        voices = [(path.stem, [read_reference(path, codec)]) for path in flags.reference]
    failed = 0
    for name, references in voices:
        made = speaker.utterances(lines, references, flags.seed)
        work_s = speaker.speak(made)
        began_s = time.monotonic()
        sounds = [
            decode_codes(codec, torch.from_numpy(np.array(u.codes))).numpy()
            if u.codes
            else np.zeros(0, np.float32)
            for u in made
        ]
        work_s += time.monotonic() - began_s
        found = account(made, codec.frame_samples / codec.sample_rate, work_s)
        failed += found.runaways + found.cut_off
        print(f"{name}: {found}", flush=True)
        if flags.out is not None:
            write_recordings(flags.out / name, lines, sounds, codec.sample_rate)
    speaker.close()
    return 1 if failed else 0


def through_codec(flags: argparse.Namespace) -> int:
    """The ``codec`` part: for each speaker of the speech the originals and what came back."""
    codec = load_codec(flags.model)
    speech, texts = read_speech(flags.speech), read_texts(flags.texts)
    for speaker in np.unique(speech.speaker):
        name = speech.names[speaker] if speaker < len(speech.names) else f"blend{speaker}"
        chosen = np.flatnonzero(speech.speaker == speaker)[: flags.limit or None]
        lines = [texts.sentences[speech.text[index]].decode() for index in chosen]
        originals = [speech.samples(int(index)) for index in chosen]
        outputs = [
            decode_codes(codec, encode_codes(codec, torch.from_numpy(sound))).numpy()
            for sound in originals
        ]
        write_recordings(flags.out / f"{name}_original", lines, originals, codec.sample_rate)
        write_recordings(flags.out / f"{name}_codec", lines, outputs, codec.sample_rate)
        print(f"{name}: {len(lines)} recordings", flush=True)
    return 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="eval", description=__doc__)
    parts = parser.add_subparsers(required=True)
    tts = parts.add_parser("tts", help="speak a text file; exits 1 for runaways and cut-offs")
    tts.add_argument("--texts", type=Path, required=True, help="one sentence a line")
    tts.add_argument("--reference", type=Path, nargs="*", help="recordings with .txt beside them")
    tts.add_argument("--seed", type=int, default=0)
    tts.add_argument("--times", type=int, default=1, help="say the whole file this often")
    tts.add_argument("--alone", action="store_true", help="one at a time, to time it")
    tts.set_defaults(part=speak_texts)
    codec = parts.add_parser("codec", help="teacher speech through the codec and back")
    codec.add_argument("--speech", type=Path, required=True)
    codec.add_argument("--texts", type=Path, required=True, help="texts.npz")
    codec.set_defaults(part=through_codec)
    for part in (tts, codec):
        part.add_argument("--model", type=Path, required=True, help="a folder that export wrote")
        part.add_argument("--limit", type=int, default=0)
        part.add_argument("--out", type=Path, required=part is codec, help="for the recordings")
    flags = parser.parse_args(argv)
    return int(flags.part(flags))
