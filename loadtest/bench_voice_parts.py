"""The parts of a voice's table: each speaks, listens, and gives its figures.

What the parts share, the engine, the recogniser and the speaker encoder, is made when the first
part asks for it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch

from shoal.engine.codec import Codec, decode_codes, encode_codes, load_codec
from shoal.engine.prompt import PromptReference
from shoal.engine.training import evaluate
from shoal.engine.training.likeness import SpeakerEncoder, without_pauses
from shoal.engine.training.speech import read_speech
from shoal.engine.training.texts import read_texts
from shoal.engine.training.timbre import Matrix, cepstra, divergence, nearness

from .asr_wer import Heard, Recogniser, at_asr_rate, compare, word_error_rate
from .bench_turn import machine
from .bench_voice_shape import measure_shape
from .sound_shape import Samples
from .voice_table import Row

HERE = Path(__file__).parents[1]
SENTENCES_20 = HERE / "tests" / "data" / "sents20.txt"
SENTENCES_60 = HERE / "engine" / "training" / "sentences60.txt"
RECORDINGS = HERE / "tests" / "data" / "voices"
REFERENCE_SENTENCES = 2
"""Of a recital, joined to one recording of about seven seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A voice's ``samples`` saying ``text``."""

    name: str
    text: str
    samples: Samples


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each part is measured."""

    sentences: int | None = None
    clones: int | None = None
    codec_sentences: int | None = None
    many: int = 500
    alone: int = 8


WHOLE = Size()
QUICK = Size(sentences=5, clones=4, codec_sentences=3, many=24, alone=3)


@dataclass(slots=True, eq=False)
class Bench:
    """What the parts share; what is costly is made when it is first asked for."""

    model: Path
    out: Path
    size: Size
    recital: Path | None
    recital_texts: Path | None
    recordings: Path
    seed: int
    codec: Codec = field(init=False)
    _speaker: evaluate.Speaker | None = None
    _recogniser: Recogniser | None = None
    _encoder: SpeakerEncoder | None = None

    def __post_init__(self) -> None:
        self.codec = load_codec(self.model)

    @property
    def rate(self) -> int:
        return self.codec.sample_rate

    def close(self) -> None:
        if self._speaker is not None:
            self._speaker.close()

    def speaker(self) -> evaluate.Speaker:
        if self._speaker is None:
            self._speaker = evaluate.Speaker(self.model)
        return self._speaker

    def sounds(self, made: Iterable[evaluate.Utterance]) -> list[Samples]:
        return [decoded(self.codec, u) for u in made]

    def listen(self, what: str, texts: Sequence[str], sounds: Sequence[Samples]) -> float:
        """The word error rate; every error goes into ``errors.txt``."""
        if self._recogniser is None:
            self._recogniser = Recogniser()
        results: list[Heard] = []
        for text, sound in zip(texts, sounds, strict=True):
            results.append(compare(text, self._recogniser(at_asr_rate(sound, self.rate))))
        wrong = [f"{what}: {r.errors}/{r.words} {r.text} | {r.heard}" for r in results if r.errors]
        with (self.out / "errors.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in wrong)
        return word_error_rate(results)

    def direction(self, sounds: Sequence[Samples]) -> Samples:
        """Of who speaks in all of them."""
        if self._encoder is None:
            self._encoder = SpeakerEncoder()
        return self._encoder(self._joined(sounds))

    def cepstra(self, sounds: Sequence[Samples]) -> Matrix:
        return cepstra(without_pauses(self._joined(sounds)))

    def _joined(self, sounds: Sequence[Samples]) -> Samples:
        """At the rate at which both opinions on voices are formed."""
        pcm = b"".join(at_asr_rate(sound, self.rate) for sound in sounds)
        return (np.frombuffer(pcm, "<i2") / 32768).astype(np.float32)

    def voices(self) -> dict[str, list[Sound]]:
        """What each voice of the recital says; or one recording of each voice."""
        if self.recital is None or self.recital_texts is None:
            found: dict[str, list[Sound]] = {}
            for path in sorted(self.recordings.iterdir()):
                if path.suffix in (".ogg", ".wav", ".flac"):
                    text, sound = evaluate.read_recording(path, self.rate)
                    found[path.stem] = [Sound(path.stem, text, sound)]
            return found
        speech, texts = read_speech(self.recital), read_texts(self.recital_texts)
        voices: dict[str, list[Sound]] = {}
        for index in range(len(speech)):
            name = speech.names[int(speech.speaker[index])]
            text = texts.sentences[int(speech.text[index])].decode()
            voices.setdefault(name, []).append(Sound(name, text, speech.samples(index)))
        return voices


def decoded(codec: Codec, utterance: evaluate.Utterance) -> Samples:
    if not utterance.codes:
        return np.zeros(0, np.float32)
    return decode_codes(codec, torch.as_tensor(np.array(utterance.codes))).numpy()


def lines(path: Path, limit: int | None = None) -> list[str]:
    found = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return found[:limit]


# The parts ----------------------------------------------------------------------------------------


def files(bench: Bench) -> list[Row]:
    size = sum(path.stat().st_size for path in bench.model.iterdir() if path.is_file())
    return [Row("all files", size / 1e6, "MB", at_most=30.0)]


def speed(bench: Bench) -> list[Row]:
    texts = lines(SENTENCES_20, bench.size.alone)
    alone = evaluate.Speaker(bench.model, 1)
    made = alone.utterances(texts, [], bench.seed)
    alone.speak(alone.utterances(texts[:1], [], bench.seed))
    work_s = alone.speak(made)
    began_s = time.monotonic()
    sounds = bench.sounds(made)
    work_s += time.monotonic() - began_s
    alone.close()
    factor = work_s / (sum(map(len, sounds)) / bench.rate)
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    note = f"{cores} cores, load {load:.1f}; {machine()}"
    return [Row("real-time factor, one stream", factor, "", at_most=0.25, aim=0.12, note=note)]


def _spoken(bench: Bench, what: str, path: Path) -> list[Row]:
    texts = lines(path, bench.size.sentences)
    speaker = bench.speaker()
    made = speaker.utterances(texts, [], bench.seed)
    speaker.speak(made)
    sounds = bench.sounds(made)
    evaluate.write_recordings(bench.out / what, texts, sounds, bench.rate)
    rate = 100 * bench.listen(what, texts, sounds)
    return [Row(f"TTS WER, {len(texts)} of {path.name}", rate, "%", at_most=8.0, aim=4.0)]


def tts20(bench: Bench) -> list[Row]:
    return _spoken(bench, "tts20", SENTENCES_20)


def tts60(bench: Bench) -> list[Row]:
    return _spoken(bench, "tts60", SENTENCES_60)


def clones(bench: Bench) -> list[Row]:
    """The sentences like each voice; sentences that its recording says are left out."""
    own: dict[str, Samples] = {}
    made: dict[str, Samples] = {}
    own_cepstra: dict[str, Matrix] = {}
    made_cepstra: dict[str, Matrix] = {}
    rates: dict[str, float] = {}
    speaker = bench.speaker()
    for name, sounds in bench.voices().items():
        first = sounds[:REFERENCE_SENTENCES]
        joined = np.concatenate([sound.samples for sound in first])
        codes = encode_codes(bench.codec, torch.as_tensor(joined)).numpy()
        reference = PromptReference(" ".join(sound.text for sound in first), codes)
        told = {sound.text for sound in first}
        texts = [t for t in lines(SENTENCES_20) if t not in told][: bench.size.clones]
        utterances = speaker.utterances(texts, [reference], bench.seed)
        speaker.speak(utterances)
        spoken = bench.sounds(utterances)
        evaluate.write_recordings(bench.out / f"like_{name}", texts, spoken, bench.rate)
        rates[name] = 100 * bench.listen(f"like {name}", texts, spoken)
        own[name] = bench.direction([sound.samples for sound in sounds])
        made[name] = bench.direction(spoken)
        own_cepstra[name] = bench.cepstra([sound.samples for sound in sounds])
        made_cepstra[name] = bench.cepstra(spoken)
    names = list(own)
    same = {name: float(made[name] @ own[name]) for name in names}
    others = {
        f"{one} to {other}": float(made[one] @ own[other])
        for one in names
        for other in names
        if one != other
    }
    apart = [float(own[a] @ own[b]) for i, a in enumerate(names) for b in names[:i]]
    between = (
        f"the recordings themselves: {np.mean(apart):.2f} on average, {max(apart):.2f} at most"
    )
    return [
        Row(
            "TTS WER like a recording, mean",
            float(np.mean(list(rates.values()))),
            "%",
            at_most=12.0,
            aim=6.0,
            note=_each(rates, ".1f"),
        ),
        Row(
            "speaker cosine, clone to its recording, worst",
            min(same.values()),
            "",
            at_least=0.80,
            aim=0.88,
            note=_each(same, ".2f"),
        ),
        Row(
            "speaker cosine, clone to other voices, mean",
            float(np.mean(list(others.values()))),
            "",
            at_most=0.65,
            note=f"{between}; most alike: {max(others, key=others.__getitem__)} "
            f"{max(others.values()):.2f}",
        ),
        _second("clone", own_cepstra, made_cepstra),
    ]


def codec(bench: Bench) -> list[Row]:
    """Raises :class:`LeftOut` without a recital."""
    if bench.recital is None or bench.recital_texts is None:
        raise LeftOut("needs --recital and --recital-texts")
    rates: dict[str, float] = {}
    originals: dict[str, float] = {}
    alike: dict[str, float] = {}
    plain_cepstra: dict[str, Matrix] = {}
    coded_cepstra: dict[str, Matrix] = {}
    for name, sounds in bench.voices().items():
        chosen = sounds[: bench.size.codec_sentences]
        texts = [sound.text for sound in chosen]
        plain = [sound.samples for sound in chosen]
        coded = [
            decode_codes(bench.codec, encode_codes(bench.codec, torch.as_tensor(s))).numpy()
            for s in plain
        ]
        evaluate.write_recordings(bench.out / f"codec_{name}", texts, coded, bench.rate)
        originals[name] = 100 * bench.listen(f"original {name}", texts, plain)
        rates[name] = 100 * bench.listen(f"codec {name}", texts, coded)
        alike[name] = float(bench.direction(plain) @ bench.direction(coded))
        plain_cepstra[name], coded_cepstra[name] = bench.cepstra(plain), bench.cepstra(coded)
    note = f"{_each(rates, '.1f')}; originals {_each(originals, '.1f')}"
    return [
        Row(
            f"codec WER, worst of {len(rates)} voices",
            max(rates.values()),
            "%",
            at_most=4.5,
            aim=3.0,
            note=note,
        ),
        Row(
            "speaker cosine through the codec, worst",
            min(alike.values()),
            "",
            note=_each(alike, ".2f"),
        ),
        _second("copy through the codec", plain_cepstra, coded_cepstra),
    ]


def _second(what: str, own: dict[str, Matrix], made: dict[str, Matrix]) -> Row:
    """An opinion on voices that no training can have been towards."""
    apart = {name: divergence(made[name], own[name]) for name in made}
    shares = nearness(own, made)
    note = f"{_each(apart, '.2f')}; over that to the nearest other voice: {_each(shares, '.2f')}"
    name = f"divergence of cepstra, {what} from its own voice, worst"
    return Row(name, max(apart.values()), "nats", note=note)


def many(bench: Bench) -> list[Row]:
    texts = list(islice(cycle(lines(SENTENCES_60) + lines(SENTENCES_20)), bench.size.many))
    speaker = bench.speaker()
    made = speaker.utterances(texts, [], bench.seed + 1000)
    work_s, told_s = 0.0, time.monotonic()
    for begin in range(0, len(made), 4 * evaluate.SLOTS):
        work_s += speaker.speak(made[begin : begin + 4 * evaluate.SLOTS])
        if time.monotonic() - told_s > 15:
            told_s = time.monotonic()
            print(f"  {begin} of {len(made)} utterances", file=sys.stderr, flush=True)
    found = evaluate.account(made, bench.codec.frame_samples / bench.rate, work_s)
    odd = [u for u in made if not u.ended] + evaluate.cut_off(made)
    if odd:
        evaluate.write_recordings(
            bench.out / "odd", [u.text for u in odd], bench.sounds(odd), bench.rate
        )
    note = f"{found}" + (", which lie in the folder odd" if odd else "")
    return [Row(f"runaways and cut-offs in {len(made)}", len(odd), "", at_most=0.0, note=note)]


def shape(bench: Bench) -> list[Row]:
    return measure_shape(bench.model, bench.out / "shape", bench.seed)


def _each(values: dict[str, float], form: str) -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())


PARTS: dict[str, Callable[[Bench], list[Row]]] = {
    "files": files,
    "speed": speed,
    "tts20": tts20,
    "tts60": tts60,
    "clones": clones,
    "codec": codec,
    "many": many,
    "shape": shape,
}


class LeftOut(Exception):
    """A part lacks what it needs; the message says what."""
