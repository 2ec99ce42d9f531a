"""The fake engine keeps the port's promises, so that what is tested against it means something."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
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
    Priority,
    PushText,
    Reference,
    Resume,
    Sampling,
    SegmentStarted,
    StreamId,
    Voice,
)
from shoal.engine.fake import FakeEngine
from shoal.engine.fake_tone import tone

S, T = StreamId(1), StreamId(2)


class Driver:
    """A started engine and the events that it delivered."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.batches: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
        self.fatal: list[BaseException] = []
        engine.start(self.batches.put, self.fatal.append)

    def submit(self, *commands: object) -> None:
        for command in commands:
            self.engine.submit(command)

    def until(self, wanted: Callable[[Event], bool], limit_s: float = 20.0) -> list[Event]:
        """All events up to and with the first that is wanted."""
        seen: list[Event] = []
        deadline_s = time.monotonic() + limit_s
        while True:
            batch = self.batches.get(timeout=max(0.0, deadline_s - time.monotonic()))
            seen.extend(batch)
            if any(wanted(event) for event in batch):
                return seen

    def until_over(self, stream: StreamId = S) -> list[Event]:
        events = self.until(
            lambda e: isinstance(e, (Finished, Failed)) and e.stream == stream,
        )
        return [e for e in events if e.stream == stream]

    def nothing_for(self, seconds: float) -> bool:
        try:
            self.batches.get(timeout=seconds)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def start(**options: object) -> Driver:
        drivers.append(Driver(FakeEngine(**{"speed": 100.0, **options})))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.engine.stop()
        assert driver.fatal == []


def audio(events: Sequence[Event]) -> bytes:
    return b"".join(e.samples for e in events if isinstance(e, Pcm))


def test_a_turn_is_opened_spoken_and_finished_in_order(drive: Callable[..., Driver]) -> None:
    driver = drive()
    driver.submit(Open(S), PushText(S, "One two. Three"), EndText(S))
    events = driver.until_over()
    kinds = [type(e) for e in events]
    assert kinds[0] is Opened and kinds[-1] is Finished and kinds.count(SegmentStarted) == 2
    chunks = [e for e in events if isinstance(e, Pcm)]
    assert [c.seq for c in chunks] == list(range(len(chunks)))
    assert [c.timing is not None for c in chunks] == [True] + [False] * (len(chunks) - 1)
    last = events[-1]
    assert isinstance(last, Finished)
    assert (last.samples, last.segments) == (len(audio(events)) // 2, 2)
    assert last.samples == last.frames * 1200
    assert np.abs(np.frombuffer(audio(events), "<i2")).max() > 8000


def test_the_same_request_gives_the_same_audio_and_another_seed_or_voice_does_not(
    drive: Callable[..., Driver],
) -> None:
    driver = drive(voices=("alice",))

    def say(stream: int, **options: object) -> bytes:
        identity = StreamId(stream)
        driver.submit(Open(identity, **options), PushText(identity, "Hello."), EndText(identity))
        return audio(driver.until_over(identity))

    first = say(1)
    assert first == say(2)
    assert len(first) == len(say(3, sampling=Sampling(seed=1))) and first != say(
        4, sampling=Sampling(seed=1)
    )
    assert first != say(5, voice=Voice("alice"))


def test_flush_speaks_what_is_there_and_is_not_the_end(drive: Callable[..., Driver]) -> None:
    driver = drive()
    driver.submit(Open(S), PushText(S, "half a sen"), Flush(S, 7))
    events = driver.until(lambda e: isinstance(e, Flushed))
    flushed = events[-1]
    assert isinstance(flushed, Flushed) and flushed.mark == 7
    assert flushed.at_samples == len(audio(events)) // 2 > 0
    driver.submit(Flush(S, 8))
    assert driver.until(lambda e: isinstance(e, Flushed))[-1].mark == 8  # at once: no text
    driver.submit(PushText(S, "tence"), EndText(S))
    assert isinstance(driver.until_over()[-1], Finished)


def test_text_that_cannot_be_spoken_is_a_moment_of_silence(drive: Callable[..., Driver]) -> None:
    driver = drive()
    driver.submit(Open(S), PushText(S, "... \U0001f600 "), EndText(S))
    events = driver.until_over()
    last = events[-1]
    assert isinstance(last, Finished) and last.samples == last.frames * 1200 == 2400
    assert audio(events) == bytes(4800)


def test_cancel_silences_a_stream_and_frees_its_slot(drive: Callable[..., Driver]) -> None:
    driver = drive(slots=1, speed=10.0)
    driver.submit(Open(S), PushText(S, "a" * 2000), EndText(S))
    driver.until(lambda e: isinstance(e, Pcm))
    driver.submit(Cancel(S), Open(T), PushText(T, "Hello."), EndText(T))
    events = driver.until(lambda e: isinstance(e, Finished))
    assert {e.stream for e in events if isinstance(e, (Pcm, Finished))} == {T}
    assert driver.engine.stats().slots_busy <= 1


def test_a_paused_stream_says_nothing_until_it_resumes(drive: Callable[..., Driver]) -> None:
    driver = drive()
    driver.submit(Open(S), Pause(S), PushText(S, "Hello there."), EndText(S))
    driver.until(lambda e: isinstance(e, Opened))
    assert driver.nothing_for(0.1)
    driver.submit(Resume(S))
    assert isinstance(driver.until_over()[-1], Finished)


def test_a_full_engine_refuses_after_a_bounded_wait(drive: Callable[..., Driver]) -> None:
    driver = drive(slots=1, speed=0.5, wait_s=0.2)
    driver.submit(Open(S), PushText(S, "a" * 500), EndText(S))
    driver.until(lambda e: isinstance(e, Pcm))
    driver.submit(Open(T), PushText(T, "Hello."), EndText(T))
    started_s = time.monotonic()
    refused = driver.until_over(T)[-1]
    assert isinstance(refused, Failed) and refused.fault is Fault.BUSY
    assert 0.1 < time.monotonic() - started_s  # and long before the other has said its minute


def test_a_full_queue_refuses_at_once(drive: Callable[..., Driver]) -> None:
    driver = drive(slots=1, speed=0.5, wait_s=60.0, max_waiting=0)
    driver.submit(Open(S), PushText(S, "a" * 500), EndText(S))
    driver.until(lambda e: isinstance(e, Pcm))
    driver.submit(Open(T), PushText(T, "Hello."), Flush(T))
    refused = driver.until_over(T)[-1]
    assert isinstance(refused, Failed) and refused.fault is Fault.BUSY


def test_an_open_stream_without_text_holds_no_slot(drive: Callable[..., Driver]) -> None:
    driver = drive(slots=1)
    driver.submit(Open(S), Open(T), PushText(T, "Hello."), EndText(T))
    assert isinstance(driver.until_over(T)[-1], Finished)


@pytest.mark.parametrize(
    ("voice", "message"),
    [
        (Voice("nobody"), "Reference not found"),
        (Voice(references=(Reference(b"\0" * 100, "x"),)), "reference 1 is not audio"),
    ],
)
def test_a_voice_that_is_none_is_the_client_s_fault(
    drive: Callable[..., Driver], voice: Voice, message: str
) -> None:
    driver = drive()
    driver.submit(Open(S, voice=voice))
    assert driver.until_over() == [Failed(S, Fault.CLIENT, message)]


def test_commands_for_an_unknown_stream_are_ignored(drive: Callable[..., Driver]) -> None:
    driver = drive()
    driver.submit(PushText(T, "x"), Flush(T), EndText(T), Cancel(T), Pause(T), Resume(T))
    driver.submit(Open(S), PushText(S, "Hello."), EndText(S))
    assert isinstance(driver.until_over()[-1], Finished)


def test_it_fails_a_stream_where_it_was_told_to(drive: Callable[..., Driver]) -> None:
    driver = drive(fails_on="boom")
    driver.submit(Open(S), PushText(S, "Fine so far. Then boom."), EndText(S))
    events = driver.until_over()
    assert audio(events)
    assert isinstance(events[-1], Failed) and events[-1].fault is Fault.ENGINE


def test_batch_priority_gives_its_slot_to_a_live_turn_and_goes_on_where_it_was(
    drive: Callable[..., Driver],
) -> None:
    driver = drive(slots=1)
    text = "A long sentence that somebody else may well interrupt."
    driver.submit(Open(S, priority=Priority.BATCH), PushText(S, text), EndText(S))
    seen = driver.until(lambda e: isinstance(e, Pcm))
    driver.submit(Open(T), PushText(T, "Hello."), EndText(T))
    seen += driver.until(lambda e: isinstance(e, Finished) and e.stream == T)
    assert not any(isinstance(e, Finished) and e.stream == S for e in seen)
    seen += driver.until_over(S)
    info = driver.engine.info
    mine = [e for e in seen if e.stream == S]
    assert audio(mine) == tone(text, "", 0, info.sample_rate, info.frame_samples)


def test_batch_priority_waits_without_a_limit(drive: Callable[..., Driver]) -> None:
    driver = drive(slots=1, speed=10.0, wait_s=0.02, max_waiting=0)
    driver.submit(Open(S), PushText(S, "A sentence that takes a while."), EndText(S))
    driver.until(lambda e: isinstance(e, Pcm))
    driver.submit(Open(T, priority=Priority.BATCH), PushText(T, "Hello."), EndText(T))
    assert isinstance(driver.until_over(T)[-1], Finished)
