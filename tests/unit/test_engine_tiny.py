"""The whole engine on its threads, with real models: a tiny random one, and the built-in voice."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf  # pyright: ignore[reportMissingTypeStubs]

from shoal.engine.api import (
    Cancel,
    EndText,
    Failed,
    Fault,
    Finished,
    Flush,
    Flushed,
    Opened,
    Pcm,
    Prepare,
    PushText,
    Reference,
    Sampling,
    SegmentStarted,
    StreamId,
    Voice,
)
from shoal.engine.config import BUILTIN_VOICE, EngineConfig, Limits
from shoal.engine.loading import LoadedModel, load_model
from shoal.engine.prompt import PromptBuilder
from shoal.engine.runner import (
    Float32Array,
    Int32Array,
    Runner,
)
from shoal.engine.service import SpeechEngine
from tests.live import Live, Recording, live

TINY = Path(__file__).parents[1] / "data" / "s2_tiny"
FRAMES = 24
WORDS = ("amber", "boat", "cedar", "dune", "ember", "fjord", "grove", "harbor", "inlet", "jetty")


@pytest.fixture
def tiny() -> Iterator[Live]:
    with live(TINY) as engine:
        yield engine


def sampling(seed: int) -> Sampling:
    return Sampling(seed=seed, max_frames_per_segment=FRAMES)


def wav(pitch_hz: float, seconds: float = 1.0) -> bytes:
    """A tone that comes and goes, as syllables do."""
    rate = 44_100
    at_s = np.arange(int(rate * seconds)) / rate
    wave = 0.4 * np.sin(2 * math.pi * pitch_hz * at_s) * np.sin(15 * at_s)
    file = io.BytesIO()
    sf.write(file, wave.astype(np.float32), rate, format="WAV", subtype="PCM_16")
    return file.getvalue()


def test_a_turn_is_opened_spoken_and_finished_once(tiny: Live) -> None:
    stream = tiny.speak("Hello there.", sampling(3))
    tiny.wait(stream)
    take = tiny.takes[stream]
    kinds = [type(event) for event in take.events]
    assert kinds[:3] == [Opened, SegmentStarted, Pcm]
    assert kinds[-1] is Finished
    end = take.end
    assert isinstance(end, Finished)
    assert end.samples == end.frames * 2048 == len(take.pcm) // 2
    assert [e.seq for e in take.events if isinstance(e, Pcm)] == list(range(kinds.count(Pcm)))
    timings = [e.timing for e in take.events if isinstance(e, Pcm)]
    assert timings[0] is not None
    assert (
        min(timings[0].wait_s, timings[0].prefill_s, timings[0].first_frames_s, timings[0].codec_s)
        >= 0.0
    )
    assert timings[1:] == [None] * (len(timings) - 1)


def test_eight_streams_on_one_voice_hold_its_prefix_once_and_share_every_step(tiny: Live) -> None:
    voice = Voice(references=(Reference(wav(180.0, 3.0), "Two words."),))
    first = tiny.speak("Warm up.", sampling(1), voice)
    tiny.wait(first)
    tiny.quiet()
    held = tiny.engine.stats()
    before, prefilled = len(tiny.runner.plans), len(tiny.runner.prefills)
    page_tokens = tiny.runner.spec.page_tokens
    text = "The amber boat. A cedar dune. One ember fjord. The last grove."
    streams = [tiny.speak(text, sampling(50), voice)]

    def join() -> None:
        """As the first begins, however little time this test's thread is given."""
        tiny.runner.launching = lambda: None
        streams.extend(tiny.speak(text, sampling(50 + n), voice) for n in range(1, 8))

    tiny.runner.launching = join
    tiny.wait(streams[0])
    tiny.wait(*streams)
    plans = tiny.runner.plans[before:]
    tables: dict[int, tuple[int, ...]] = {}
    for plan in plans:
        tables |= {join.slot: join.table for join in plan.joins}
        if len(plan.slots) == 8:
            break
    # One pass of a step for everybody.
    assert len(tables) == 8
    assert len(plans) < sum(len(plan.slots) for plan in plans) / 3
    pages = [page for table in tables.values() for page in table]
    shared = {page for page in pages if pages.count(page) == 8}
    # 3 s are 64 frames: with the transcript the voice fills at least one page to its end, and what
    # is not shared by all belongs to one alone.
    assert len(shared) >= 1
    assert all(pages.count(page) == 1 for page in set(pages) - shared)
    # Nothing of the voice was prefilled again: every prefill began behind the shared pages.
    shared_positions = len(shared) * page_tokens
    assert min(c.position for c in tiny.runner.prefills[prefilled:]) >= shared_positions
    assert max(len(plan.slots) for plan in plans) == 8
    tiny.quiet()
    after = tiny.engine.stats()
    assert after.hot.misses == held.hot.misses
    assert after.hot.hits > held.hot.hits
    assert (after.hot.entries, after.pages_used) == (held.hot.entries, held.pages_used)


def test_a_seed_gives_the_same_codes_alone_and_beside_seven_others(tiny: Live) -> None:
    voice = Voice(references=(Reference(wav(180.0), "Two words."),))
    other = Voice(references=(Reference(wav(300.0), "Three more words."),))
    text = "The amber boat crosses the fjord at dawn. Then it returns to the harbor."
    alone = tiny.speak(text, sampling(1000), voice)
    tiny.wait(alone)
    tiny.quiet()  # a step that was in flight at the cut may still be collected
    codes = tiny.runner.codes.pop(1000)
    assert len(codes) >= 2 * FRAMES

    def neighbour(n: int) -> StreamId:
        words = " ".join(WORDS[(n * 3 + k) % len(WORDS)] for k in range(4 + n))
        return tiny.speak(f"{words}.", sampling(n), (voice, other, Voice())[n % 3])

    around = [neighbour(n) for n in range(4)]
    again = tiny.speak(text, sampling(1000), voice)
    around += [neighbour(n) for n in range(4, 7)]
    tiny.wait(again, *around)
    beside = tiny.runner.codes[1000]
    # The row that was in flight when the frame limit came is not sound: how many run is timing.
    assert codes[:FRAMES] == beside[:FRAMES]
    assert tiny.takes[alone].pcm != b""
    # Chunks are cut by time, and the codec's sums in another order differ in the last bit.
    assert _difference(tiny.takes[alone].pcm, tiny.takes[again].pcm) <= 1


def test_every_stream_of_a_mixed_batch_gets_what_it_would_get_alone(tiny: Live) -> None:
    short = Voice(references=(Reference(wav(180.0), "Two words."),))
    long = Voice(references=(Reference(wav(250.0, 4.0), "Quite a few more words than that."),))
    pair = Voice(speakers=(short, long))
    work = (
        ("The amber boat crosses the fjord at dawn. Then it returns to the harbor.", short),
        ("Cedar.", Voice()),
        ("博物馆星期一闭馆，但图书馆一直开放到六点。", long),
        ("Der alte Hafen liegt still. Niemand wartet auf das letzte Boot im Nebel.", Voice()),
        ("<|speaker:0|>Who is there? <|speaker:1|>Nobody but the wind.", pair),
        ("¿Dónde está la biblioteca? Está detrás del puerto, junto al viejo molino.", short),
        ("[whispers] A quiet dune, an ember, a grove.", long),
    )
    alone: list[list[tuple[int, ...]]] = []
    for seed, (text, voice) in enumerate(work, 100):
        stream = tiny.speak(text, sampling(seed), voice)
        tiny.wait(stream)
        tiny.quiet()
        alone.append(tiny.runner.codes.pop(seed))
    together = 0
    for _ in range(5):  # on a busy machine some may be over before others begin
        before = len(tiny.runner.plans)
        streams = [tiny.speak(text, sampling(seed), v) for seed, (text, v) in enumerate(work, 100)]
        tiny.wait(*streams)
        tiny.quiet()
        for seed, codes in enumerate(alone, 100):
            # Which rows ran on after a cut, before the host saw it, is timing.
            assert len(codes) >= FRAMES
            assert tiny.runner.codes.pop(seed)[:FRAMES] == codes[:FRAMES]
        assert all(isinstance(tiny.takes[stream].end, Finished) for stream in streams)
        together = max(len(plan.slots) for plan in tiny.runner.plans[before:])
        if together == len(work):
            break
    assert together == len(work)


def test_speakers_of_one_turn_are_not_one_voice(tiny: Live) -> None:
    short = Voice(references=(Reference(wav(180.0), "Two words."),))
    long = Voice(references=(Reference(wav(250.0, 2.0), "More words."),))
    text = "<|speaker:1|>Amber boat."
    voices = (Voice(speakers=(short, long)), Voice(speakers=(long, short)), short)
    codes: list[list[tuple[int, ...]]] = []
    for seed, voice in enumerate(voices, 300):
        stream = tiny.speak(text, Sampling(temperature=0.0, seed=seed), voice)
        tiny.wait(stream)
        codes.append(tiny.runner.codes[seed][:6])
    assert codes[0] != codes[1] and codes[0] != codes[2]
    # The recordings were encoded once for all three, and each order is a prefix of its own.
    tiny.quiet()
    stats = tiny.engine.stats()
    assert (stats.encoded, stats.hot.entries) == (2, 4)


def test_the_key_of_a_prefix_is_every_codebook() -> None:
    """Two voices that agree in text and in codebook 0 do not sound alike."""
    config = EngineConfig(model=TINY, device="cpu", slots=2)
    loaded = load_model(config, lambda _: None)
    runner = TwoVoices(loaded.runner)
    engine = Live(SpeechEngine(config, model=replace(loaded, runner=runner)), runner)
    try:
        takes: list[bytes] = []
        for pitch in (100.0, 200.0, 100.0):
            voice = Voice(references=(Reference(wav(pitch), "The same words."),))
            stream = engine.speak("Amber boat.", sampling(9), voice)
            engine.wait(stream)
            takes.append(engine.takes[stream].pcm)
        one, two = runner.encoded
        assert (one[:, 0] == two[:, 0]).all() and (one[:, 1:] != two[:, 1:]).any()
        assert takes[0] != takes[1]
        # The built-in one, and two: the first was found again.
        assert engine.engine.stats().hot.entries == 3
        assert len(runner.encoded) == 2
        assert takes[0] == takes[2] or _difference(takes[0], takes[2]) <= 1
    finally:
        engine.engine.stop()


def _difference(one: bytes, other: bytes) -> int:
    """The largest difference of two takes of equal length, in steps of 16 bits."""
    first, second = (np.frombuffer(take, "<i2").astype(np.int32) for take in (one, other))
    assert len(first) == len(second)
    return int(np.abs(first - second).max())


class TwoVoices(Recording):
    """Encodes every recording to the same codebook 0, and to others of its own."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self.encoded: list[Int32Array] = []

    def encode(self, samples: Float32Array) -> Int32Array:
        count = len(self.encoded) + 1
        codes = np.zeros((6, self.spec.codebooks), np.int32)
        codes[:, 0] = np.arange(6)
        codes[:, 1:] = 7 * count
        self.encoded.append(codes)
        return codes


def test_failures_are_told_in_the_clients_terms_and_hurt_nobody_else(tiny: Live) -> None:
    tiny.engine.submit(Prepare(Voice("nobody")))
    good = tiny.speak("Amber boat. Cedar dune.", sampling(2))
    unknown = tiny.speak("Ember.", sampling(2), Voice("nobody"))
    noise = tiny.speak("Ember.", sampling(2), Voice(references=(Reference(b"not audio", "x"),)))
    tiny.wait(good, unknown, noise)
    assert isinstance(tiny.takes[good].end, Finished)
    for stream in (unknown, noise):
        end = tiny.takes[stream].end
        assert isinstance(end, Failed) and end.fault is Fault.CLIENT


def test_text_without_anything_to_say_is_silence_and_marks_are_reached(tiny: Live) -> None:
    stream = tiny.open(sampling(4))
    tiny.engine.submit(Flush(stream, 1))
    tiny.engine.submit(PushText(stream, "..."))
    tiny.engine.submit(Flush(stream, 2))
    tiny.engine.submit(EndText(stream))
    nothing = tiny.open(sampling(4))
    tiny.engine.submit(EndText(nothing))
    tiny.wait(stream, nothing)
    marks = [e for e in tiny.takes[stream].events if isinstance(e, Flushed)]
    assert [(m.mark, m.at_samples > 0) for m in marks] == [(1, False), (2, True)]
    assert set(tiny.takes[stream].pcm) == {0}
    end = tiny.takes[nothing].end
    assert end == Finished(nothing, 0, 0, 0)


def test_a_cancelled_stream_leaves_nothing_behind(tiny: Live) -> None:
    idle = tiny.engine.stats().pages_used
    for delay_s in (0.0, 0.005, 0.02, 0.05):
        stream = tiny.speak("Amber boat. Cedar dune. Ember fjord.", sampling(2))
        time.sleep(delay_s)
        tiny.engine.submit(Cancel(stream))
        after = tiny.speak("Grove.", sampling(3))
        tiny.wait(after)
    tiny.quiet()
    tiny.drain()
    stats = tiny.engine.stats()
    assert (stats.slots_busy, stats.streams_open) == (0, 0)
    assert stats.pages_used <= max(idle, 1)


@pytest.mark.timeout(900)  # a minute on two cores that have nothing else to do
def test_five_minutes_of_text_are_spoken_to_their_end() -> None:
    sentences = [
        f"The {WORDS[n % 10]} by the {WORDS[(n // 10 + n) % 10]} was quiet that morning, and the "
        f"{WORDS[(3 * n + 1) % 10]} lay still beside the old stone wall."
        for n in range(62)
    ]
    loaded: LoadedModel
    config = EngineConfig(model=BUILTIN_VOICE, device="cpu", slots=1, limits=ALL_AT_ONCE)
    loaded = load_model(config, lambda _: None)
    runner = Recording(loaded.runner)
    engine = Live(SpeechEngine(config, model=replace(loaded, runner=runner)), runner)
    try:
        stream = engine.speak(" ".join(sentences), Sampling(seed=5))
        engine.wait(stream, within_s=800.0)
        take, end = engine.takes[stream], engine.takes[stream].end
    finally:
        engine.engine.stop()
    assert isinstance(end, Finished)
    said = " ".join(segment.text for segment in take.segments)
    assert said.split() == " ".join(sentences).split()
    starts = [segment.at_samples for segment in take.segments]
    assert starts == sorted(starts) and len(set(starts)) == len(starts)
    seconds = end.samples / loaded.runner.spec.sample_rate
    assert 240.0 <= seconds <= 480.0, seconds
    # The conversation is longer than the model's context: it was begun anew several times.
    prefix = len(
        PromptBuilder(
            loaded.tokenizer,
            runner.spec.codebooks,
            loaded.config.semantic_ids(loaded.tokenizer.semantic),
        ).prefix()
    )
    anew = [chunk for chunk in runner.prefills if chunk.position == prefix]
    assert end.frames > 2 * loaded.voice.max_context
    assert len(anew) >= end.frames // loaded.voice.max_context
    assert max(join.position for join in runner.joins.values()) < runner.spec.max_positions


ALL_AT_ONCE = Limits(park_lead_s=1e6, furthest_lead_s=1e6)
"""Nobody listens: speak as fast as the machine can."""
