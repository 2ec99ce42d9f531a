"""Events from other threads reach whoever registered their stream, and nobody after a forget."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from shoal.engine.api import Cancel, Event, Finished, Flushed, Opened, Pcm, StreamId, Timing
from shoal.engine.fake import FakeEngine
from shoal.realtime.hub import MOST_JOINED_BYTES, SLICE_S, Hub
from tests.fakes import ManualClock

S, T, S2 = StreamId(1), StreamId(2), StreamId(3)


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


def pcm(stream: StreamId, seq: int, due_s: float = 0.0) -> Pcm:
    return Pcm(stream, seq, seq.to_bytes(2, "little"), due_s=due_s)


def apart(events: Sequence[Event]) -> list[Event | int]:
    """Sound by its samples, however it was joined."""
    found: list[Event | int] = []
    for event in events:
        if isinstance(event, Pcm) and event.timing is None:
            found += np.frombuffer(event.samples, "<u2").tolist()
        else:
            found.append(event)
    return found


def test_a_batch_is_one_call_and_each_event_finds_its_stream() -> None:
    hub, loop, _ = make()
    got_s, got_t = list[Event](), list[Event]()
    hub.register(S, got_s.append)
    hub.register(T, got_t.append)
    hub.deliver([pcm(S, 0), pcm(T, 0), pcm(S, 1)])
    assert len(loop.scheduled) == 1 and got_s == []
    loop.run()
    assert apart(got_s) == [0, 1] and got_t == [pcm(T, 0)]


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
    hub.deliver([pcm(S, 0), Flushed(S, 1, 1), pcm(S, 1)])
    loop.run()
    assert got == [pcm(S, 0)]


def slowly(clock: ManualClock, got: list[Event]) -> Callable[[Event], None]:
    """Takes every event, for half a slice."""

    def take(event: Event) -> None:
        clock.tick(0.5 * SLICE_S)
        got.append(event)

    return take


def slow_hub() -> tuple[Hub, CountingLoop, list[Event]]:
    loop, clock, got = CountingLoop(), ManualClock(), list[Event]()
    hub = Hub(RecordingEngine(), loop, lambda _: None, clock)  # type: ignore[arg-type]
    for stream in range(1, 9):
        hub.register(StreamId(stream), slowly(clock, got))
    return hub, loop, got


def test_a_long_batch_is_handed_out_in_slices_between_which_others_have_a_turn() -> None:
    hub, loop, got = slow_hub()
    hub.deliver([pcm(StreamId(stream), 0) for stream in range(1, 6)])
    loop.scheduled.append(lambda: got.append(Opened(StreamId(6), 0.0, True)))
    loop.run()
    assert [event.stream for event in got] == [1, 2, 6, 3, 4, 5]


def test_a_first_sound_passes_others_later_sound_and_none_of_its_own_stream() -> None:
    hub, loop, got = slow_hub()
    first = Pcm(T, 0, b"\0\0", Timing(0.0, 0.0, 0.0, 0.0))
    late = [Flushed(S, 1, 0), pcm(S, 1), Flushed(S, 2, 0), Finished(S, 4, 4, 1)]
    hub.deliver([pcm(S, 0), *late])
    hub.deliver([first, pcm(T, 1)])
    loop.run()
    assert got[:3] == [pcm(S, 0), late[0], first]
    assert [event for event in got if event.stream == S] == [pcm(S, 0), *late]
    assert [event for event in got if event.stream == T] == [first, pcm(T, 1)]


def test_of_later_sound_that_goes_first_which_is_needed_first() -> None:
    hub, loop, got = slow_hub()
    needed_s = (9.0, 8.0, 3.0, 2.5, 7.0, 1.0)
    hub.deliver([pcm(StreamId(1 + i), 0, due_s) for i, due_s in enumerate(needed_s)])
    loop.run()
    assert [event.stream for event in got] == [6, 4, 3, 5, 2, 1]


def test_sound_that_has_to_wait_grows_together_but_not_without_end() -> None:
    hub, loop, got = slow_hub()
    hub.route([pcm(S, 0), pcm(S2, 0), pcm(T, 0, 1.0)])  # two fill a slice
    for seq in range(1, 6):
        hub.route([pcm(T, seq, 1.0 + seq)])
    hub.route([Flushed(T, 1, 0), pcm(T, 6)])
    loop.run()
    joined = Pcm(T, 0, b"".join(pcm(T, seq).samples for seq in range(6)))
    assert got == [pcm(S, 0), pcm(S2, 0), joined, Flushed(T, 1, 0), pcm(T, 6)]

    quarter = bytes(MOST_JOINED_BYTES // 4)
    hub.deliver([Pcm(S, seq, quarter) for seq in range(10)])
    loop.run()
    assert [len(event.samples) // len(quarter) for event in got[5:] if isinstance(event, Pcm)] == [
        4,
        4,
        2,
    ]


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
        assert apart([event for event in got if event.stream == stream]) == apart(events)


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
        if len(apart(got)) == 800:
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
        assert apart(mine) == list(range(200))


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
