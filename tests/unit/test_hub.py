"""Events from other threads reach whoever registered their stream, and nobody after a forget."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable

import pytest

from shoal.engine.api import Cancel, Event, Finished, Flushed, Opened, Pcm, StreamId, Timing
from shoal.engine.fake import FakeEngine
from shoal.realtime.hub import SLICE_S, Hub
from tests.fakes import ManualClock

S, T = StreamId(1), StreamId(2)


class CountingLoop:
    """Counts what is scheduled, and runs it when told to."""

    def __init__(self) -> None:
        self.scheduled: list[object] = []
        self.closed = False

    def call_soon_threadsafe(self, callback: object) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self.scheduled.append(callback)

    def call_soon(self, callback: object) -> None:
        self.scheduled.append(callback)

    def is_closed(self) -> bool:
        return self.closed

    def run(self) -> None:
        while self.scheduled:
            self.scheduled.pop(0)()  # type: ignore[operator]


class RecordingEngine(FakeEngine):
    def __init__(self) -> None:
        super().__init__()
        self.commands: list[object] = []

    def submit(self, command: object) -> None:
        self.commands.append(command)


def make() -> tuple[Hub, CountingLoop, list[BaseException]]:
    loop, deaths = CountingLoop(), list[BaseException]()
    return Hub(RecordingEngine(), loop, deaths.append), loop, deaths  # type: ignore[arg-type]


def pcm(stream: StreamId, seq: int) -> Pcm:
    return Pcm(stream, seq, b"\0\0")


def test_a_batch_is_one_call_and_each_event_finds_its_stream() -> None:
    hub, loop, _ = make()
    got_s, got_t = list[Event](), list[Event]()
    hub.register(S, got_s.append)
    hub.register(T, got_t.append)
    hub.deliver([pcm(S, 0), pcm(T, 0), pcm(S, 1)])
    assert len(loop.scheduled) == 1 and got_s == []
    loop.run()
    assert got_s == [pcm(S, 0), pcm(S, 1)] and got_t == [pcm(T, 0)]


def test_what_was_on_its_way_to_a_forgotten_stream_is_dropped() -> None:
    hub, loop, _ = make()
    got = list[Event]()
    hub.register(S, got.append)
    hub.deliver([pcm(S, 0)])
    hub.forget(S)
    loop.run()
    assert got == [] and hub.streams == 0


def test_a_stream_forgotten_within_a_batch_gets_no_more_of_it() -> None:
    hub, loop, _ = make()
    got = list[Event]()

    def once(event: Event) -> None:
        got.append(event)
        hub.forget(S)

    hub.register(S, once)
    hub.deliver([pcm(S, 0), pcm(S, 1)])
    loop.run()
    assert got == [pcm(S, 0)]


def slowly(clock: ManualClock, got: list[Event]) -> Callable[[Event], None]:
    """Takes every event, for half a slice."""

    def take(event: Event) -> None:
        clock.tick(0.5 * SLICE_S)
        got.append(event)

    return take


def test_a_long_batch_is_handed_out_in_slices_between_which_others_have_a_turn() -> None:
    loop, clock, got = CountingLoop(), ManualClock(), list[Event]()
    hub = Hub(RecordingEngine(), loop, lambda _: None, clock)  # type: ignore[arg-type]
    hub.register(S, slowly(clock, got))
    hub.deliver([pcm(S, seq) for seq in range(5)])
    loop.scheduled.append(lambda: got.append(Opened(T, 0.0, True)))
    loop.run()
    assert [event.stream for event in got] == [S, S, T, S, S, S]


def test_a_first_sound_passes_others_later_sound_and_none_of_its_own_stream() -> None:
    loop, clock, got = CountingLoop(), ManualClock(), list[Event]()
    hub = Hub(RecordingEngine(), loop, lambda _: None, clock)  # type: ignore[arg-type]
    hub.register(S, slowly(clock, got))
    hub.register(T, slowly(clock, got))
    late, end = [pcm(S, seq) for seq in range(4)], Finished(S, 4, 4, 1)
    first = Pcm(T, 0, b"\0\0", Timing(0.0, 0.0, 0.0, 0.0))
    hub.deliver([*late, end])
    hub.deliver([first, pcm(T, 1)])
    loop.run()
    assert got == [*late[:2], first, *late[2:], end, pcm(T, 1)]


def test_a_receiver_that_raises_holds_nobody_else_up_for_ever() -> None:
    hub, loop, _ = make()
    got = list[Event]()

    def fail(_: Event) -> None:
        raise RuntimeError("a receiver's bug")

    hub.register(S, fail)
    hub.register(T, got.append)
    hub.deliver([pcm(S, 0), pcm(T, 0)])
    with pytest.raises(RuntimeError):
        loop.run()
    loop.run()
    assert got == [pcm(T, 0)]
    hub.deliver([pcm(T, 1)])
    loop.run()
    assert got == [pcm(T, 0), pcm(T, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_each_stream_gets_all_of_its_own_in_order(seed: int) -> None:
    chance = random.Random(seed)
    loop, clock, got = CountingLoop(), ManualClock(), list[Event]()
    hub = Hub(RecordingEngine(), loop, lambda _: None, clock)  # type: ignore[arg-type]
    left: dict[StreamId, list[Event]] = {}
    for number in range(1, 9):
        stream = StreamId(number)
        first = Pcm(stream, 0, b"", Timing(0.0, 0.0, 0.0, 0.0))
        later: list[Event] = [
            chance.choice((pcm(stream, seq), Flushed(stream, seq, 0))) for seq in range(1, 20)
        ]
        left[stream] = [Opened(stream, 0.0, True), first, *later, Finished(stream, 0, 0, 0)]
        hub.register(stream, slowly(clock, got))
    wanted = {stream: list(events) for stream, events in left.items()}
    while any(left.values()):
        batch: list[Event] = []
        for _ in range(chance.randrange(1, 12)):
            able = [stream for stream, events in left.items() if events]
            if able:
                batch.append(left[chance.choice(able)].pop(0))
        hub.deliver(batch)
        for _ in range(chance.randrange(0, 4)):
            if loop.scheduled:
                loop.scheduled.pop(0)()  # type: ignore[operator]
    loop.run()
    for stream, events in wanted.items():
        assert [event for event in got if event.stream == stream] == events
    assert len(got) == sum(map(len, wanted.values()))


def test_ids_are_never_used_twice() -> None:
    hub, _, _ = make()
    ids = [hub.new_stream() for _ in range(1000)]
    assert len(set(ids)) == 1000


def test_commands_go_to_the_engine_as_they_are() -> None:
    engine = RecordingEngine()
    hub = Hub(engine, CountingLoop(), lambda _: None)  # type: ignore[arg-type]
    hub.submit(Cancel(S))
    assert engine.commands == [Cancel(S)]


def test_a_dead_thread_is_told_on_the_loop() -> None:
    hub, loop, deaths = make()
    error = RuntimeError("dead")
    hub.fatal(error)
    assert deaths == []
    loop.run()
    assert deaths == [error]


def test_a_loop_that_has_ended_takes_nothing_and_raises_nothing() -> None:
    hub, loop, _ = make()
    loop.closed = True
    hub.deliver([Opened(S, 0.0, True)])


async def test_many_threads_deliver_in_their_order() -> None:
    got, complete = list[Event](), asyncio.Event()
    hub = Hub(RecordingEngine(), asyncio.get_running_loop(), lambda _: None)

    def take(event: Event) -> None:
        got.append(event)
        if len(got) == 800:
            complete.set()

    for stream in range(4):
        hub.register(StreamId(stream), take)

    def deliver(stream: int) -> None:
        for seq in range(200):
            hub.deliver([pcm(StreamId(stream), seq)])

    threads = [threading.Thread(target=deliver, args=(stream,)) for stream in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.wait_for(complete.wait(), 10.0)
    for thread in threads:
        thread.join()
    for stream in range(4):
        mine = [event for event in got if event.stream == stream]
        assert mine == [pcm(StreamId(stream), seq) for seq in range(200)]


def test_what_nobody_listens_to_does_not_count_as_a_stream() -> None:
    hub, loop, _ = make()
    got = list[Event]()
    hub.register(S, got.append, batch=True)
    hub.register(T, got.append)
    assert (hub.streams, hub.batch_streams) == (1, 1)
    hub.deliver([pcm(S, 0)])
    loop.run()
    assert got == [pcm(S, 0)]
    hub.forget(S)
    hub.forget(S)
    assert (hub.streams, hub.batch_streams) == (1, 0)
    hub.forget(T)
    assert (hub.streams, hub.batch_streams) == (0, 0)
