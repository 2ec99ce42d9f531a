"""One turn as an HTTP answer: what decides its status, who waits for whom, how it is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from shoal.proto.errors import CLOSE_CODES, Code
from shoal.proto.messages import (
    Aligned,
    Audio,
    Error,
    Finish,
    Log,
    ServerMessage,
    Start,
    Stop,
    TtsRequest,
)
from shoal.realtime.answers import Refused
from shoal.realtime.link import Dialect, Disconnected, Link
from shoal.realtime.speaking import SpeechFailed, SpokenResponse, audio_only, speak

ONE, TWO = Audio(b"one"), Audio(b"two")
STOP = Finish("stop")
REQUEST = TtsRequest("hello", "wav")


class ScriptedGateway:
    """Serves every link with the same messages, as a session would."""

    def __init__(self, script: Sequence[ServerMessage], close: int | None = None) -> None:
        self._script = script
        self._close = close
        self.received: list[object] = []
        self.sent: list[ServerMessage] = []
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def serve(self, link: Link, dialect: Dialect, reference_id: Any, pools: bool) -> None:
        async def write() -> None:
            for message in self._script:
                for payload in dialect.encode(message, 0):
                    await link.send(payload)
                    self.sent.append(message)
            if self._close is not None:
                await link.close(self._close, "")

        writer = asyncio.create_task(write())
        try:
            while True:
                self.received.append(dialect.decode(await link.receive()))
                self.begun.set()
        except Disconnected:
            pass
        finally:
            writer.cancel()
            await asyncio.wait([writer])
            self.ended.set()


class Client:
    """An HTTP client's side of a request; ``hang_up`` when it likes."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        self.messages: list[dict[str, Any]] = []
        self._gone = asyncio.Event()
        app = SimpleNamespace(state=SimpleNamespace(gateway=gateway))
        self.scope: dict[str, Any] = {"type": "http", "method": "POST", "headers": [], "app": app}
        self.request = Request(self.scope, self.receive)

    def hang_up(self) -> None:
        self._gone.set()

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def complete(self) -> bool:
        return self.messages[-1].get("more_body") is False


async def test_the_whole_turn_is_said_and_its_audio_streamed() -> None:
    gateway = ScriptedGateway([Log("a remark"), ONE, TWO, STOP])
    client = Client(gateway)
    spoken = await speak(client.request, REQUEST, timestamps=True)
    assert gateway.received == [Start(REQUEST, timestamps=True), Stop()]
    assert spoken.content_type == "audio/wav"
    response = SpokenResponse(spoken, audio_only, spoken.content_type, {"x-a": "b"})
    await response(client.scope, client.receive, client.send)
    assert client.messages[0]["status"] == 200
    assert dict(client.messages[0]["headers"]) == {
        b"content-type": b"audio/wav",
        b"x-a": b"b",
        b"x-shoal-remark": b"a remark",
        b"cache-control": b"no-store",
        b"x-accel-buffering": b"no",
    }
    assert client.body == b"onetwo" and client.complete
    assert gateway.sent == [Log("a remark"), ONE, TWO, STOP]
    assert gateway.ended.is_set()


async def test_remarks_fit_into_one_header_and_a_turn_without_has_none() -> None:
    script = [Log("letters\r\nx-b:\0\x7fc"), Log("的"), ONE, STOP]
    for messages, expected in ((script, b"letters x-b: c; ?"), ([ONE, STOP], None)):
        client = Client(ScriptedGateway(messages))
        spoken = await speak(client.request, REQUEST)
        response = SpokenResponse(spoken, audio_only, spoken.content_type)
        await response(client.scope, client.receive, client.send)
        headers = dict(client.messages[0]["headers"])
        assert headers.get(b"x-shoal-remark") == expected and b"x-b" not in headers
        assert client.body == b"one"


@pytest.mark.parametrize(
    ("close", "status", "again"),
    [
        (CLOSE_CODES[Code.BAD_REQUEST], 400, None),
        (CLOSE_CODES[Code.TOO_BIG], 413, None),
        (CLOSE_CODES[Code.BUSY], 429, 1),
        (CLOSE_CODES[Code.ENGINE], 500, None),
        (CLOSE_CODES[Code.DRAINING], 503, 1),
        (1000, 500, None),
    ],
)
async def test_a_failure_before_audio_is_a_status(
    close: int, status: int, again: int | None
) -> None:
    gateway = ScriptedGateway([Error("why", 4), Finish("error", "why")], close)
    with pytest.raises(Refused) as refused:
        await speak(Client(gateway).request, REQUEST)
    refusal = refused.value.refusal
    assert (refusal.status, refusal.message, refusal.retry_after_s) == (status, "why", again)
    assert gateway.ended.is_set()


async def test_a_failure_after_audio_never_looks_whole() -> None:
    gateway = ScriptedGateway([ONE, Finish("error", "why")], 1011)
    client = Client(gateway)
    spoken = await speak(client.request, REQUEST)
    response = SpokenResponse(spoken, audio_only, "audio/wav")
    # Without a transport to abort, the server below takes an error to cut the connection.
    with pytest.raises(RuntimeError):
        await response(client.scope, client.receive, client.send)
    assert client.body == b"one" and not client.complete
    assert gateway.ended.is_set()


async def test_each_message_waits_until_the_one_before_was_taken() -> None:
    gateway = ScriptedGateway([ONE, TWO, STOP])
    spoken = await speak(Client(gateway).request, REQUEST)
    messages = aiter(spoken)
    assert await anext(messages) is ONE
    for _ in range(5):
        await asyncio.sleep(0)
    assert gateway.sent == [], "the first is not dealt with while nobody asks for the second"
    assert await anext(messages) is TWO
    assert gateway.sent == [ONE]
    await spoken.close()
    assert gateway.sent == [ONE, TWO] and gateway.ended.is_set()
    await spoken.close()


async def test_times_that_precede_the_audio_are_kept() -> None:
    times = Aligned(0, "hello", 0.0, 0.5, (), False)
    gateway = ScriptedGateway([times, ONE, STOP])
    spoken = await speak(Client(gateway).request, REQUEST, timestamps=True)
    assert [message async for message in spoken] == [times, ONE, STOP]
    await spoken.close()


async def test_no_audio_is_an_empty_answer() -> None:
    gateway = ScriptedGateway([STOP])
    client = Client(gateway)
    spoken = await speak(client.request, REQUEST)
    await SpokenResponse(spoken, audio_only, "audio/wav")(client.scope, client.receive, client.send)
    assert client.body == b"" and client.complete


async def test_a_client_that_hangs_up_before_audio_ends_the_turn() -> None:
    gateway = ScriptedGateway([])
    client = Client(gateway)
    asyncio.get_running_loop().call_soon(client.hang_up)
    with pytest.raises(Refused):
        await speak(client.request, REQUEST)
    assert gateway.ended.is_set()


async def test_a_client_that_hangs_up_amid_audio_ends_the_turn() -> None:
    gateway = ScriptedGateway([ONE])
    client = Client(gateway)
    spoken = await speak(client.request, REQUEST)
    messages = aiter(spoken)
    assert await anext(messages) is ONE
    client.hang_up()
    with pytest.raises(SpeechFailed):
        await anext(messages)
    await gateway.ended.wait()
    await spoken.close()


async def test_a_handler_that_is_cancelled_ends_the_turn() -> None:
    gateway = ScriptedGateway([])
    task = asyncio.create_task(speak(Client(gateway).request, REQUEST))
    await gateway.begun.wait()
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and gateway.ended.is_set()
