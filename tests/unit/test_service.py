"""The engine on its threads, with a scripted runner in place of a model: what a gateway relies on.

The same with real models is in test_engine_tiny.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.engine.api import (
    Cancel,
    EndText,
    Event,
    Failed,
    Fault,
    Finished,
    Flush,
    Flushed,
    Open,
    Opened,
    Pause,
    Pcm,
    PushText,
    Reference,
    Resume,
    Sampling,
    SegmentStarted,
    StreamId,
    Voice,
)
from shoal.engine.checkpoint import read_voice_config
from shoal.engine.config import EngineConfig, Limits
from shoal.engine.loading import LoadedModel
from shoal.engine.model.config import read_config
from shoal.engine.runner import Join, StepPlan
from shoal.engine.service import SpeechEngine
from shoal.engine.tokenizer import load_tokenizer
from shoal.engine.voices import VoiceStore
from tests.fakes import ScriptedRunner, spec
from tests.live import Live, Recording
from tests.unit.test_voices import wav

TINY = Path(__file__).parents[1] / "data" / "s2_tiny"
FRAMES = 30


def frames_of(join: Join) -> int:
    return FRAMES + join.sampling.seed % 5


def runner_of(slots: int = 4) -> ScriptedRunner:
    return ScriptedRunner(
        spec(slots=slots, pages=120, page_tokens=16, max_positions=512, codebooks=10), frames_of
    )


def engine_of(
    runner: ScriptedRunner,
    limits: Limits | None = None,
    voices: Path | None = None,
    frontend: str = "none",
) -> SpeechEngine:
    config = read_config(TINY)
    loaded = LoadedModel(
        name="scripted",
        config=config,
        voice=replace(read_voice_config(TINY, max_seq_len=512), frontend=frontend),
        tokenizer=load_tokenizer(TINY),
        runner=runner,
        device="none",
        note="no model",
        codec_fingerprint="scripted",
    )
    settings = EngineConfig(model=TINY, limits=limits or Limits(), voices_dir=voices)
    return SpeechEngine(settings, model=loaded)


class Scripted(Live):
    """A started engine over a scripted runner."""

    def __init__(self, runner: ScriptedRunner, **settings: object) -> None:
        self.scripted = runner
        super().__init__(engine_of(runner, **settings), Recording(runner))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def desk() -> Iterator[Scripted]:
    made = Scripted(runner_of())
    yield made
    made.engine.stop()
    assert made.fatal == []


def seeded(seed: int) -> Sampling:
    return Sampling(seed=seed)


def test_it_says_what_it_is_before_it_starts() -> None:
    engine = engine_of(runner_of())
    assert (engine.info.model, engine.info.sample_rate, engine.info.frame_samples) == (
        "scripted",
        800,
        40,
    )
    assert (engine.info.slots, engine.info.note) == (4, "no model")
    assert engine.info.sampling.temperature is not None
    assert engine.stats().streams_open == 0 and engine.voices() == ()
    assert engine.info.speakers and not engine.info.latin_only
    english = engine_of(runner_of(), frontend="english").info
    assert english.latin_only and not english.speakers
    engine.stop()


def test_a_turn_from_text_to_sound(desk: Scripted) -> None:
    stream = desk.speak("Hello there.", seeded(0))
    desk.wait(stream)
    take = desk.takes[stream]
    kinds = [type(event) for event in take.events]
    assert kinds[:3] == [Opened, SegmentStarted, Pcm] and kinds[-1] is Finished
    assert take.end == Finished(stream, FRAMES, FRAMES * 40, 1)
    assert len(take.pcm) == 2 * FRAMES * 40


def test_what_is_heard_is_the_same_alone_and_in_a_crowd(desk: Scripted) -> None:
    alone = desk.speak("Hello there, my friend.", seeded(7))
    desk.wait(alone)
    streams = [desk.speak(f"Neighbour number {n} speaks.", seeded(n)) for n in range(3)]
    again = desk.speak("Hello there, my friend.", seeded(7))
    desk.wait(again, *streams)
    assert desk.takes[alone].pcm == desk.takes[again].pcm
    assert len({desk.takes[stream].pcm for stream in (again, *streams)}) == 4


def test_after_a_cancel_nothing_comes_any_more(desk: Scripted) -> None:
    for delay_s in (0.0, 0.001, 0.003, 0.01):
        gone = desk.open(seeded(1))
        desk.engine.submit(PushText(gone, "One sentence. " * 40))
        desk.engine.submit(EndText(gone))
        time.sleep(delay_s)
        desk.engine.submit(Cancel(gone))
        after = desk.speak("Next.", seeded(2))
        desk.wait(after)
        had = len(desk.takes[gone].events)
        desk.wait(desk.speak("And next.", seeded(3)))
        assert len(desk.takes[gone].events) == had
        assert desk.takes[gone].end is None
    desk.quiet()


def test_a_reader_who_stops_is_waited_for_and_hurts_nobody() -> None:
    desk = Scripted(runner_of(), limits=Limits(furthest_lead_s=2.0))
    try:
        slow = desk.open(seeded(1))
        desk.engine.submit(PushText(slow, "A long story is told here. " * 60))
        desk.engine.submit(EndText(slow))
        while not desk.takes[slow].pcm:
            desk.drain()
        desk.engine.submit(Pause(slow))
        other = desk.speak("Meanwhile.", seeded(2))
        desk.wait(other)
        had = len(desk.takes[slow].pcm)
        others = [desk.speak("Meanwhile, again.", seeded(n)) for n in range(3)]
        desk.wait(*others)
        desk.drain()
        # Not a frame more than what the codec still held when the pause came.
        assert len(desk.takes[slow].pcm) - had <= 2 * 40 * 10
        until = time.monotonic() + 5.0  # a busy engine's figures may be a moment old
        while desk.engine.stats().streams_open != 1 and time.monotonic() < until:
            desk.drain()
        assert desk.engine.stats().streams_open == 1
        desk.engine.submit(Resume(slow))
        more = len(desk.takes[slow].pcm)
        until = time.monotonic() + 10.0
        while len(desk.takes[slow].pcm) == more and time.monotonic() < until:
            desk.drain()
        assert len(desk.takes[slow].pcm) > more
    finally:
        desk.engine.stop()


def test_overload_is_refused_in_time_and_speakers_go_on() -> None:
    limits = Limits(furthest_lead_s=3.0, waiting=2, wait_s=1.0)
    desk = Scripted(runner_of(slots=2), limits=limits)
    try:
        speakers = [desk.speak("A long story is told. " * 30, seeded(n)) for n in range(2)]
        while any(not desk.takes[speaker].pcm for speaker in speakers):
            desk.drain()
        began = time.monotonic()
        late = [desk.speak("Me too.", seeded(9)) for _ in range(5)]
        desk.wait(*late[2:])
        assert all(desk.takes[stream].end is None for stream in late[:2]), "the others at once"
        desk.wait(*late)
        assert time.monotonic() - began >= limits.wait_s  # and in time: the speakers speak yet
        for stream in late:
            end = desk.takes[stream].end
            assert isinstance(end, Failed) and end.fault is Fault.BUSY
        assert all(desk.takes[speaker].end is None for speaker in speakers)
        assert desk.engine.stats().min_lead_s > 0.5
    finally:
        desk.engine.stop()


def test_one_jobs_failure_is_one_streams(desk: Scripted) -> None:
    desk.wait(desk.speak("Warm.", seeded(0)))
    desk.scripted.fail_prefill = True
    failed = desk.speak("Hello.", seeded(1))
    desk.wait(failed)
    desk.scripted.fail_prefill = False
    desk.scripted.fail_vocode = True
    mute = desk.speak("Hello.", seeded(1))
    desk.wait(mute)
    desk.scripted.fail_vocode = False
    good = desk.speak("Hello.", seeded(1))
    desk.wait(good)
    for stream in (failed, mute):
        end = desk.takes[stream].end
        assert isinstance(end, Failed) and end.fault is Fault.ENGINE
    assert isinstance(desk.takes[good].end, Finished)
    desk.quiet()


def test_stored_voices_speak_and_are_listed(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    store.add("ann", (Reference(wav(), "Who I am."),))
    desk = Scripted(runner_of(), voices=tmp_path)
    try:
        assert [info.voice_id for info in desk.engine.voices()] == ["ann"]
        streams = [
            desk.speak("Hello.", seeded(1), Voice(voice_id)) for voice_id in ("ann", None, "ann")
        ]
        nobody = desk.speak("Hello.", seeded(1), Voice("nobody"))
        desk.wait(*streams, nobody)
        one, default, two = (desk.takes[stream].pcm for stream in streams)
        assert one == two != default
        end = desk.takes[nobody].end
        assert isinstance(end, Failed) and end.message.startswith("Reference not found")
        assert desk.engine.stats().hot.entries == 2
    finally:
        desk.engine.stop()


class Dies(ScriptedRunner):
    """A device that fails at the fifth step."""

    def launch(self, plan: StepPlan) -> None:
        if plan.step == 5:
            raise RuntimeError("the device is gone")
        super().launch(plan)


def test_a_thread_that_dies_is_reported_once_and_the_engine_still_stops() -> None:
    sizes = runner_of().spec
    desk = Scripted(Dies(sizes, frames_of))
    desk.speak("Hello there.", seeded(1))
    until = time.monotonic() + 10.0
    while not desk.fatal and time.monotonic() < until:
        time.sleep(0.005)
    assert [str(error) for error in desk.fatal] == ["the device is gone"]
    desk.engine.stop()
    assert desk.scripted.closed and len(desk.fatal) == 1


def test_stopping_ends_the_threads_and_every_delivery() -> None:
    before = threading.active_count()
    runner = runner_of()
    engine = engine_of(runner)
    events: list[Event] = []
    stopped = threading.Event()

    def deliver(batch: Sequence[Event]) -> None:
        assert not stopped.is_set()
        events.extend(batch)

    fatal: list[BaseException] = []
    engine.start(deliver, fatal.append)
    assert threading.active_count() > before
    for number in range(6):
        engine.submit(Open(StreamId(number)))
        engine.submit(PushText(StreamId(number), "A long story is told. " * 50))
    while not any(isinstance(event, Pcm) for event in events):
        time.sleep(0.002)
    engine.stop()
    stopped.set()
    assert threading.active_count() == before
    assert runner.closed and not fatal


def test_many_lives_on_threads_leave_nothing_behind(desk: Scripted) -> None:
    chance = random.Random(3)
    open_now: list[StreamId] = []
    cancelled: set[StreamId] = set()
    every: list[StreamId] = []
    for number in range(250):
        stream = desk.open(seeded(number))
        every.append(stream)
        open_now.append(stream)
        desk.engine.submit(PushText(stream, "One. Two words. " * chance.randrange(1, 3)))
        if chance.random() < 0.5:
            desk.engine.submit(Flush(stream, number))
        desk.engine.submit(EndText(stream))
        if chance.random() < 0.3:
            gone = open_now.pop(chance.randrange(len(open_now)))
            cancelled.add(gone)
            desk.engine.submit(Cancel(gone))
        if len(open_now) > 12:
            desk.wait(open_now.pop(0))
    desk.wait(*(stream for stream in every if stream not in cancelled))
    desk.quiet()
    for stream in every:
        take = desk.takes[stream]
        pcms = [event for event in take.events if isinstance(event, Pcm)]
        assert [event.seq for event in pcms] == list(range(len(pcms)))
        if stream in cancelled:
            continue
        end = take.end
        if isinstance(end, Failed):
            assert end.fault is Fault.BUSY
            continue
        assert isinstance(end, Finished)
        assert len(take.pcm) == 2 * end.samples == 2 * 40 * end.frames
        marks = [event for event in take.events if isinstance(event, Flushed)]
        assert all(mark.at_samples <= end.samples for mark in marks)
    stats = desk.engine.stats()
    assert (stats.slots_busy, stats.streams_open, stats.hot.entries) == (0, 0, 1)
    default = desk.scripted.log.prefilled[0]
    assert stats.pages_used == len(default.table)


def test_commands_from_many_threads_are_taken(desk: Scripted) -> None:
    def talk(stream: StreamId) -> None:
        for piece in ("Hel", "lo there, ", "frie", "nd. "):
            desk.engine.submit(PushText(stream, piece))
        desk.engine.submit(EndText(stream))

    streams = [desk.open(seeded(number)) for number in range(4)]
    threads = [threading.Thread(target=talk, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    desk.wait(*streams)
    for stream in streams:
        assert " ".join(s.text for s in desk.takes[stream].segments) == "Hello there, friend."
