"""Contexts of one socket: counted, freed, told apart, and gone with the socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.proto.errors import ProtocolError
from shoal.proto.messages import (
    MAX_TEXT_CHARS,
    Audio,
    Cancel,
    Cancelled,
    ClientMessage,
    Finish,
    Flush,
    ServerMessage,
    Start,
    Stop,
    Text,
    TtsRequest,
)
from shoal.realtime.contexts import MAX_CLOSING, MAX_INBOX, Context, ContextRefused, Contexts
from shoal.realtime.link import Disconnected
from shoal.realtime.parsing import Parsing

START = Start(TtsRequest())


class FakeSocket:
    """Frames come from ``frames``; ``None`` is a client that hung up."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[str | None] = asyncio.Queue()
        self.sent: list[str] = []
        self.closed: int | None = None
        self.on_the_way = 0
        self.gone = False
        self.backlogged = False

    async def receive(self) -> str:
        frame = await self.frames.get()
        if frame is None:
            self.gone = True
            raise Disconnected
        return frame

    async def send(self, payload: str) -> None:
        if self.gone:
            raise Disconnected
        self.sent.append(payload)

    async def close(self, code: int, reason: str) -> None:
        self.closed = code

    def abort(self) -> None:
        self.frames.put_nowait(None)

    def unacknowledged_bytes(self) -> int:
        return self.on_the_way


class FakeGateway:
    """Its session notes what is said; a stop finishes it, a cancel cancels it."""

    def __init__(self, quiet_s: float = 60.0, slots: int = 64) -> None:
        self.config = SimpleNamespace(pooled_grace_s=quiet_s)
        self.parsing = Parsing()
        self.engine = SimpleNamespace(info=SimpleNamespace(slots=slots))
        self.draining = False
        self.heard: list[tuple[str, ClientMessage]] = []
        self.refused: list[str] = []
        self.errors = 0
        counter = SimpleNamespace(inc=self._count)
        self.metrics = SimpleNamespace(errors=SimpleNamespace(labels=lambda fault: counter))
        self.slow = asyncio.Event()
        self.slow.set()

    def _count(self) -> None:
        self.errors += 1

    async def serve(self, link: Context, dialect: Any, reference_id: None, pools: bool) -> None:
        try:
            while True:
                message = dialect.decode(await link.receive())
                self.heard.append((link.key, message))
                match message:
                    case Stop():
                        await self.slow.wait()
                        await link.send(Finish("stop"))
                    case Cancel():
                        await link.send(Cancelled(0.0))
                    case _:
                        pass
        except ProtocolError as error:
            self.refused.append(error.message)
        except Disconnected:
            pass


def translate(key: str) -> Callable[[ServerMessage], list[str]]:
    return lambda message: [f"{key}:{type(message).__name__}"]


class Rig:
    def __init__(self, **options: Any) -> None:
        quiet_s = options.pop("quiet_s", 60.0)
        self.socket = FakeSocket()
        self.gateway = FakeGateway(quiet_s, options.pop("slots", 64))
        self.contexts = Contexts(self.socket, self.gateway, "test", **options)  # type: ignore
        self.frames: list[object] = []

    def open(self, key: str) -> Context:
        return self.contexts.open(key, START, translate(key), (Finish, Cancelled))

    async def take(self, frame: object) -> None:
        self.frames.append(frame)


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Rig]:
    rig = Rig(**options)
    run = asyncio.create_task(rig.contexts.run(rig.take, "sorry"))
    try:
        yield rig
    finally:
        rig.socket.frames.put_nowait(None)
        await asyncio.wait_for(run, 30)


def texts(rig: Rig) -> list[str]:
    return [message.text for _, message in rig.gateway.heard if isinstance(message, Text)]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.field_row(10)
async def test_one_over_the_limit_is_refused_alone_and_a_closed_one_does_not_count() -> None:
    async with running(max_open=2) as rig:
        first = rig.open("a")
        rig.open("b")
        with pytest.raises(ContextRefused, match="at most 2 contexts"):
            rig.open("c")
        assert rig.socket.closed is None
        rig.gateway.slow.clear()  # what it was told to say takes its time
        rig.contexts.close(first, Stop())
        rig.open("c")
        rig.gateway.slow.set()
        await settle()
        assert rig.socket.sent == ["a:Finish"]
        assert rig.contexts.get("c") is not None


@pytest.mark.field_row(12)
async def test_contexts_that_are_through_leave_nothing_behind() -> None:
    async with running(max_open=1) as rig:
        for number in range(50):
            rig.open(str(number)).say(Text("a"), Stop())
            await settle()
        assert len(rig.socket.sent) == 50
        assert rig.contexts.get("49") is None
        assert not rig.contexts._open and not rig.contexts._closing and not rig.contexts._tasks


async def test_closed_contexts_that_still_speak_are_bounded() -> None:
    async with running() as rig:
        rig.gateway.slow.clear()
        for number in range(MAX_CLOSING):
            rig.contexts.close(rig.open(str(number)), Stop())
        with pytest.raises(ContextRefused, match="still speaking"):
            rig.open("more")
        rig.gateway.slow.set()
        await settle()
        rig.open("more")


async def test_a_server_that_drains_opens_no_context() -> None:
    async with running() as rig:
        rig.gateway.draining = True
        with pytest.raises(ContextRefused, match="shutting down"):
            rig.open("a")


async def test_a_name_used_again_speaks_after_the_one_before() -> None:
    async with running() as rig:
        rig.gateway.slow.clear()
        for text in ("one", "two", "three"):
            rig.contexts.close(rig.open("a"), Text(text), Stop())
        await settle()
        assert texts(rig) == ["one"]
        rig.gateway.slow.set()
        await settle()
        assert texts(rig) == ["one", "two", "three"]
        assert rig.socket.sent == ["a:Finish"] * 3


async def test_a_cancel_reaches_one_that_was_closed() -> None:
    async with running() as rig:
        context = rig.open("a")
        rig.contexts.close(context, Text("one"))
        assert rig.contexts.closing("a") == [context]
        context.say(Cancel())
        await settle()
        assert rig.socket.sent == ["a:Cancelled"]
        assert rig.contexts.closing("a") == []


async def test_cancels_that_nobody_reads_are_one() -> None:
    async with running() as rig:
        rig.gateway.slow.clear()
        rig.contexts.close(rig.open("a"), Stop())
        await settle()
        again = rig.open("a")  # speaks after the one before
        again.say(Text("one"), *[Cancel()] * 1000, Text("two"), *[Cancel()] * 1000)
        rig.gateway.slow.set()
        await settle()
        said = [type(message) for _, message in rig.gateway.heard]
        assert said == [Start, Stop, Start, Cancel]


async def test_contexts_beyond_half_the_slots_take_what_is_left_over() -> None:
    async with running(slots=4) as rig:
        contexts = [rig.open(str(n)) for n in range(4)]
        await settle()
        contexts[0].end()
        rig.open("4")
        await settle()
        starts = [message for _, message in rig.gateway.heard if isinstance(message, Start)]
        assert [start.request.priority for start in starts] == [
            *("live", "live", "batch", "batch", "live"),
        ]


async def test_bytes_on_their_way_are_told_apart() -> None:
    async with running() as rig:
        a, b = rig.open("a"), rig.open("b")
        await a.send(Audio(bytes(100)))
        await b.send(Audio(bytes(30)))
        await a.send(Audio(bytes(7)))
        frame = len("a:Audio")
        rig.socket.on_the_way = 3 * frame
        assert (a.unacknowledged_bytes(), b.unacknowledged_bytes()) == (107, 30)
        rig.socket.on_the_way = 2 * frame
        assert (a.unacknowledged_bytes(), b.unacknowledged_bytes()) == (7, 30)
        rig.socket.on_the_way = 1
        assert (a.unacknowledged_bytes(), b.unacknowledged_bytes()) == (7, 0)
        rig.socket.on_the_way = 0
        assert a.unacknowledged_bytes() == 0


async def test_finish_lets_everything_be_said_and_then_closes() -> None:
    rig = Rig()
    run = asyncio.create_task(rig.contexts.run(rig.take, "sorry"))
    rig.gateway.slow.clear()
    rig.open("a").say(Text("one"))
    rig.contexts.finish()
    await settle()
    rig.socket.frames.put_nowait("too late")
    await settle()
    assert rig.socket.closed is None
    rig.gateway.slow.set()
    await asyncio.wait_for(run, 30)
    assert rig.socket.closed == 1000
    assert rig.socket.sent == ["a:Finish"]
    assert rig.frames == []


async def test_a_socket_that_is_quiet_and_has_no_context_is_closed() -> None:
    rig = Rig(quiet_s=0.02)
    run = asyncio.create_task(rig.contexts.run(rig.take, "sorry"))
    context = rig.open("a")
    await asyncio.sleep(0.06)
    assert rig.socket.closed is None, "a context lives"
    context.say(Stop())
    await asyncio.wait_for(run, 30)
    assert rig.socket.closed == 1000


async def test_a_context_that_is_not_talked_to_takes_no_more_text() -> None:
    idle_s, now_s = 0.02, asyncio.get_running_loop().time
    async with running(idle_s=idle_s) as rig:
        for name in map(str, range(1000)):
            began_s = touched_s = now_s()
            context, late = rig.open(name), False
            while not late and now_s() < began_s + 2 * idle_s:
                await asyncio.sleep(idle_s / 4)
                late |= now_s() - touched_s >= idle_s  # a busy machine: this one shows nothing
                touched_s = now_s()
                context.touch()
            if not late:
                break
        assert rig.contexts.get(name) is context
        await asyncio.wait_for(context.ended.wait(), 30)
        assert rig.socket.sent[-1] == f"{name}:Finish"


async def test_a_client_that_hangs_up_ends_every_context() -> None:
    rig = Rig()
    run = asyncio.create_task(rig.contexts.run(rig.take, "sorry"))
    a = rig.open("a")
    rig.gateway.slow.clear()
    rig.contexts.close(rig.open("b"), Text("x"))
    rig.socket.frames.put_nowait(None)
    await asyncio.wait_for(run, 30)
    assert a.ended.is_set()
    assert rig.contexts.closing("b") == []
    a.say(Text("nobody hears this"))


async def test_a_client_is_read_no_faster_than_a_session_takes_it() -> None:
    async with running() as rig:
        rig.gateway.slow.clear()
        context = rig.open("a")
        context.say(Stop())
        await settle()  # it is at the stop
        context.say(*(Flush(number) for number in range(MAX_INBOX + 1)))
        room = asyncio.create_task(context.room())
        await settle()
        assert not room.done()
        rig.gateway.slow.set()
        await asyncio.wait_for(room, 30)


async def test_one_that_cannot_begin_yet_holds_up_no_frame() -> None:
    async with running() as rig:
        rig.gateway.slow.clear()
        rig.contexts.close(rig.open("a"), Stop())
        waits = rig.open("a")  # behind the one before
        for number in range(2 * MAX_INBOX):
            waits.say(Text("x"), Flush(number))
            await asyncio.wait_for(waits.room(), 30)
        assert len(rig.gateway.heard) == 2, "the start and the stop of the one before"
        rig.gateway.slow.set()
        await settle()
        assert texts(rig) == ["x"] * 2 * MAX_INBOX


async def test_more_than_may_wait_ends_its_context_with_a_reason() -> None:
    async with running() as rig:
        rig.gateway.slow.clear()
        rig.contexts.close(rig.open("a"), Stop())
        waits = rig.open("a")
        waits.say(Text("x" * MAX_TEXT_CHARS))
        waits.say(Text("y"))
        waits.say(Text("z"))
        rig.gateway.slow.set()
        await settle()
        assert rig.gateway.refused == [f"over {MAX_TEXT_CHARS} characters wait to be spoken"]
        assert texts(rig) == []
        assert waits.ended.is_set() and rig.contexts.get("a") is None


async def test_a_frame_that_nobody_foresaw_harms_no_context() -> None:
    async def take(frame: object) -> None:
        if frame == "worse":
            raise ZeroDivisionError
        rig.frames.append(frame)

    rig = Rig()
    run = asyncio.create_task(rig.contexts.run(take, "sorry"))
    context = rig.open("a")
    for frame in ("one", "worse", "two"):
        rig.socket.frames.put_nowait(frame)
    await settle()
    assert rig.frames == ["one", "two"] and rig.socket.sent == ["sorry"]
    assert rig.contexts.get("a") is context and rig.socket.closed is None
    assert rig.gateway.errors == 1
    rig.socket.frames.put_nowait(None)
    await asyncio.wait_for(run, 30)
