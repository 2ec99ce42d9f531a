"""Other vendors' wires by hand: what their clients do not show - limits, errors, order, keys."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from shoal.engine import api
from shoal.engine.fake import FakeEngine, tone
from shoal.engine.frontend import make_frontend
from shoal.realtime.contexts import MAX_OPEN

TIMEOUT_S = 10.0
MULTI = "/v1/text-to-speech/alice/multi-stream-input?output_format=pcm_24000"
SINGLE = "/v1/text-to-speech/alice/stream-input?output_format=pcm_24000"
SPEAK = "/v1/speak?encoding=linear16&sample_rate=24000&model=aura-2-thalia-en"
CARTESIA = "/tts/websocket"
SOUND = {
    "model_id": "sonic-3",
    "voice": {"mode": "id", "id": "alice"},
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
}

Serve = Callable[..., Any]


class RecordingEngine(FakeEngine):
    """Keeps what it was told."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: list[api.Command] = []

    def submit(self, command: api.Command) -> None:
        self.commands.append(command)
        super().submit(command)

    def said(self) -> list[str]:
        """The text of every stretch between flushes, in order."""
        stretches = [""]
        for command in self.commands:
            match command:
                case api.PushText(text=text):
                    stretches[-1] += text
                case api.Flush() | api.EndText() | api.Cancel() if stretches[-1]:
                    stretches.append("")
                case _:
                    pass
        return [text for text in stretches if text]


class Wire:
    """A socket, its JSON messages, and the pcm among them."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            await self.socket.send(json.dumps(message))

    async def next(self) -> dict[str, Any]:
        frame = await asyncio.wait_for(self.socket.recv(), TIMEOUT_S)
        return {"raw": frame} if isinstance(frame, bytes) else json.loads(frame)

    async def until(self, key: str, value: object = True) -> list[dict[str, Any]]:
        """Messages up to the first whose ``key`` is ``value``."""
        messages: list[dict[str, Any]] = []
        while not messages or messages[-1].get(key) != value:
            messages.append(await self.next())
        return messages

    async def close_code(self) -> int:
        try:
            while True:
                await self.next()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006


@asynccontextmanager
async def wire(server: Any, path: str, **options: Any) -> AsyncIterator[Wire]:
    address = server.http.replace("http", "ws", 1) + path
    async with connect(address, compression=None, close_timeout=1, **options) as socket:
        yield Wire(socket)


def seconds(messages: list[dict[str, Any]], context: str | None = None) -> float:
    """Of the pcm in them, of one context or of all."""
    total = 0
    for message in messages:
        if context in (None, message.get("contextId"), message.get("context_id")):
            data = message.get("audio") or message.get("data") or ""
            total += len(message.get("raw", b"")) + len(base64.b64decode(data))
    return total / 48_000


def spoken_s(*segments: str) -> float:
    return sum(len(tone(text, "", 0, 24_000, 1_200)) for text in segments) / 48_000


def post(server: Any, path: str, body: object, **headers: str) -> tuple[int, Any, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.http + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def words(text: str, context: str = "a", **more: object) -> dict[str, object]:
    return {"text": text, "context_id": context, **more}


def request(text: str, context: str = "a", **more: object) -> dict[str, object]:
    return {**SOUND, "transcript": text, "context_id": context, "continue": True, **more}


# Contexts ---------------------------------------------------------------------------------------


@pytest.mark.field_row(10)
async def test_elevenlabs_refuses_one_context_too_many_and_serves_the_others(shared: Any) -> None:
    async with wire(shared, MULTI) as client:
        for number in range(MAX_OPEN):
            await client.send(words(" ", f"c{number}"))
        await client.send(words("One too many. ", "over"))
        error = await client.next()
        assert error["contextId"] == "over" and "at most" in error["error"]
        await client.send({"context_id": "c0", "close_context": True}, words("Now. ", "over"))
        await client.send({"context_id": "over", "flush": True})
        await client.send({"context_id": "over", "close_context": True})
        messages = await client.until("isFinal")
        messages += await client.until("isFinal")
        assert [m["contextId"] for m in messages if m.get("isFinal")] == ["c0", "over"]
        assert seconds(messages, "over") == spoken_s("Now.")


@pytest.mark.field_row(10)
async def test_cartesia_refuses_one_context_too_many_and_serves_the_others(shared: Any) -> None:
    async with wire(shared, CARTESIA) as client:
        for number in range(MAX_OPEN):
            await client.send(request("x", f"c{number}"))
        await client.send(request("One too many.", "over"))
        error = (await client.until("type", "error"))[-1]
        assert error["context_id"] == "over" and error["status_code"] == 429
        await client.send({"context_id": "c0", "cancel": True})
        await client.send(request("Now.", "over", **{"continue": False}))
        messages = await client.until("context_id", "over")
        messages += await client.until("type", "done")
        assert seconds(messages, "over") == spoken_s("Now.")


@pytest.mark.field_row(11)
async def test_a_flush_or_a_close_of_an_unknown_context_does_nothing(serve: Serve) -> None:
    engine = RecordingEngine(speed=50.0, voices=("alice",))
    close = {"context_id": "a", "close_context": True}
    async with wire(serve(engine), MULTI) as client:
        await client.send({"context_id": "never", "flush": True}, words("", "never"), {"text": ""})
        await client.send({"context_id": "never", "close_context": True})
        await client.send(words("Yes. ", flush=True), close)
        messages = await client.until("isFinal")
        assert {message["contextId"] for message in messages} == {"a"}
        await client.send({"context_id": "a", "flush": True}, close)
        await client.send(words("Yes. ", "b", flush=True))
        await client.send({"context_id": "b", "close_context": True})
        await client.until("isFinal")
    assert sum(isinstance(command, api.Open) for command in engine.commands) == 2


@pytest.mark.field_row(11)
async def test_cartesia_makes_no_context_of_an_empty_transcript(shared: Any) -> None:
    async with wire(shared, CARTESIA) as client:
        await client.send({"context_id": "never", "cancel": True}, request("", "never"))
        await client.send(request("", "other", **{"continue": False}))
        assert await client.next() == {
            "type": "done",
            "context_id": "other",
            "done": True,
            "status_code": 200,
        }


@pytest.mark.field_row(12)
async def test_contexts_are_freed_after_a_normal_end(shared: Any) -> None:
    async with wire(shared, MULTI) as client:
        for number in range(MAX_OPEN + 4):
            name = f"turn-{number}"
            await client.send(words(" ", name), words("Hi. ", name, flush=True))
            await client.send({"context_id": name, "close_context": True})
            messages = await client.until("isFinal")
            assert seconds(messages) == spoken_s("Hi.")
    async with wire(shared, CARTESIA) as client:
        for number in range(MAX_OPEN + 4):
            await client.send(request("Hi.", f"turn-{number}", **{"continue": False}))
            assert seconds(await client.until("type", "done")) == spoken_s("Hi.")


async def test_contexts_speak_side_by_side(shared: Any) -> None:
    async with wire(shared, MULTI) as client:
        await client.send(words("This one is the longer of the two. ", "a", flush=True))
        await client.send(words("Short. ", "b", flush=True))
        for name in ("a", "b"):
            await client.send({"context_id": name, "close_context": True})
        messages = await client.until("isFinal") + await client.until("isFinal")
        assert seconds(messages, "a") == spoken_s("This one is the longer of the two.")
        assert seconds(messages, "b") == spoken_s("Short.")


@pytest.mark.field_row(7, 8, 9)
async def test_closing_what_was_not_flushed_ends_it_at_once(serve: Serve) -> None:
    server = serve(FakeEngine(speed=4.0, voices=("alice",)))
    async with wire(server, MULTI) as client:
        await client.send(words("This goes on and on and on. " * 20))
        await client.until("isFinal", False)
        await client.send({"context_id": "a", "close_context": True})
        assert seconds(await client.until("isFinal")) < 2.0
        await server.until(lambda: server.engine.stats().slots_busy == 0)
        await client.send(words("Again. ", "a", flush=True))
        await client.send({"context_id": "a", "close_context": True})
        assert seconds(await client.until("isFinal")) == spoken_s("Again.")


async def test_what_was_flushed_is_heard_after_the_close_until_another(serve: Serve) -> None:
    server = serve(FakeEngine(speed=4.0, voices=("alice",)))
    close = {"context_id": "a", "close_context": True}
    async with wire(server, MULTI) as client:
        await client.send(words("To be heard. ", flush=True), close)
        assert seconds(await client.until("isFinal")) == spoken_s("To be heard.")
        await client.send(words("This goes on and on and on. " * 20, flush=True), close)
        await client.until("isFinal", False)
        await client.send(close)
        assert seconds(await client.until("isFinal")) < 2.0


async def test_a_name_used_again_at_once_is_not_linked_to_the_one_before(shared: Any) -> None:
    close = {"context_id": "a", "close_context": True}
    async with wire(shared, MULTI) as client:
        await client.send(words("The first. ", flush=True), close)
        await client.send(words("The second one. ", flush=True), close)
        assert seconds(await client.until("isFinal")) == spoken_s("The first.")
        assert seconds(await client.until("isFinal")) == spoken_s("The second one.")


async def test_close_socket_lets_everything_be_heard(shared: Any) -> None:
    async with wire(shared, MULTI) as client:
        await client.send(words("Good night. "), {"close_socket": True})
        assert seconds(await client.until("isFinal")) == spoken_s("Good night.")
        assert await client.close_code() == 1000


async def test_a_context_that_is_not_talked_to_is_closed(shared: Any) -> None:
    async with wire(shared, MULTI + "&inactivity_timeout=1") as client:
        await client.send(words("Left alone."))
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert seconds(await client.until("isFinal")) == spoken_s("Left alone.")
        assert 0.9 < loop.time() - began_s < 5.0


async def test_a_failure_ends_its_context_alone(shared: Any) -> None:
    async with wire(shared, MULTI) as client:
        await client.send(words("boom. ", "bad", flush=True), words("Fine. ", "good", flush=True))
        await client.send({"context_id": "good", "close_context": True})
        messages = await client.until("isFinal") + await client.until("isFinal")
        assert [m["contextId"] for m in messages if "error" in m] == ["bad"]
        assert seconds(messages, "good") == spoken_s("Fine.")
    async with wire(shared, CARTESIA) as client:
        await client.send(request("boom.", "bad", **{"continue": False}))
        assert (await client.next())["type"] == "error"
        await client.send(request("Fine.", "good", **{"continue": False}))
        assert seconds(await client.until("type", "done")) == spoken_s("Fine.")


async def test_contexts_of_a_client_that_does_not_read_wait(serve: Serve) -> None:
    server = serve(FakeEngine(speed=100.0, voices=("alice",)))
    long = "a" * 500
    async with wire(server, MULTI, max_queue=1) as client:
        for name in ("a", "b"):
            await client.send(words(long, name, flush=True))
            await client.send({"context_id": name, "close_context": True})
        await server.until(lambda: server.metric("shoal_turns_paused") == 2)
        assert server.engine.stats().frames * 0.05 < 2 * 22
        messages = await client.until("isFinal") + await client.until("isFinal")
        for name in ("a", "b"):
            assert seconds(messages, name) == pytest.approx(spoken_s(long), abs=0.001)


# Text -------------------------------------------------------------------------------------------


@pytest.mark.field_row(26)
@pytest.mark.parametrize(
    ("path", "first", "more"),
    [
        (SINGLE, {"text": "This is spoken. "}, {"text": "And this comes"}),
        (MULTI, words("This is spoken. "), words("And this comes")),
        (CARTESIA, request("This is spoken. "), request("And this comes")),
        (SPEAK, {"type": "Speak", "text": "This is spoken. "}, {"type": "Speak", "text": "And"}),
    ],
    ids=["stream-input", "multi-stream-input", "cartesia", "deepgram"],
)
async def test_a_sentence_is_spoken_before_the_input_ends(
    shared: Any, path: str, first: dict[str, Any], more: dict[str, Any]
) -> None:
    async with wire(shared, path) as client:
        await client.send(first, more)
        heard_s = 0.0
        while heard_s < spoken_s("This is spoken.") - 0.06:  # the tail waits for more
            heard_s += seconds([await client.next()])


@pytest.mark.field_row(31)
@pytest.mark.parametrize("auto_mode", ["false", "true"])
async def test_a_mark_split_over_messages_reaches_the_engine_whole(
    serve: Serve, auto_mode: str
) -> None:
    engine = RecordingEngine(speed=50.0, voices=("alice",))
    async with wire(serve(engine), f"{MULTI}&auto_mode={auto_mode}") as client:
        pieces = ("Wait for it", ' <break time="1.', '5s" /> ', "[soft", " laugh] here it is", ". ")
        await client.send(*(words(piece) for piece in pieces))
        await client.send({"context_id": "a", "flush": True})
        await client.send({"context_id": "a", "close_context": True})
        await client.until("isFinal")
    said = engine.said()
    assert said == ["".join(pieces)]
    assert make_frontend("english").spoken(said[0]) == "Wait for it here it is."


@pytest.mark.field_row(31)
async def test_a_mark_split_over_transcripts_reaches_the_engine_whole(serve: Serve) -> None:
    engine = RecordingEngine(speed=50.0, voices=("alice",))
    pieces = ("Wait ", '<break time="1.', '5s" />', " here it is.")
    async with wire(serve(engine), CARTESIA) as client:
        await client.send(*(request(piece) for piece in pieces))
        await client.send(request("", **{"continue": False}))
        await client.until("type", "done")
    assert engine.said() == ["".join(pieces)]
    engine = RecordingEngine(speed=50.0, voices=("alice",))
    async with wire(serve(engine), SPEAK) as client:
        await client.send(*({"type": "Speak", "text": piece} for piece in pieces))
        await client.send({"type": "Flush"})
        await client.until("type", "Flushed")
    assert engine.said() == ["".join(pieces)]
    assert make_frontend("english").spoken(engine.said()[0]) == "Wait here it is."


async def test_pieces_of_text_are_joined_as_they_are(serve: Serve) -> None:
    engine = RecordingEngine(speed=50.0, voices=("alice",))
    server = serve(engine)
    async with wire(server, MULTI) as client:
        await client.send(words(" "), *(words(piece) for piece in ("It is 3.", "14, ye", "s", " ")))
        await client.send({"context_id": "a", "flush": True})
        await client.send({"context_id": "a", "close_context": True})
        await client.until("isFinal")
    assert engine.said() == ["It is 3.14, yes "]


async def test_sentences_of_clients_that_send_whole_ones_do_not_stick_together(
    serve: Serve,
) -> None:
    engine = RecordingEngine(speed=50.0, voices=("alice",))
    server = serve(engine)
    async with wire(server, SPEAK) as client:
        said = ("Yes.", "It is 3.", "14, or example.", "com.", '"Well', ".")
        await client.send(*({"type": "Speak", "text": text} for text in said), {"type": "Flush"})
        await client.until("type", "Flushed")
    assert engine.said() == ['Yes. It is 3.14, or example.com."Well.']
    engine.commands.clear()
    async with wire(server, MULTI + "&auto_mode=true") as client:
        await client.send(words("Yes."), words("It is."), words("And"))
        await client.send({"context_id": "a", "flush": True})
        await client.send({"context_id": "a", "close_context": True})
        await client.until("isFinal")
    assert engine.said() == ["Yes. ", "It is. ", "And"]
    engine.commands.clear()
    async with wire(server, CARTESIA) as client:
        await client.send(request("Yes.", max_buffer_delay_ms=0))
        await client.send(request("It is.", max_buffer_delay_ms=0, **{"continue": False}))
        messages = await client.until("type", "done")
    assert engine.said() == ["Yes. ", "It is."]
    assert [m["flush_id"] for m in messages if m["type"] == "flush_done"] == [1, 2]


# What a client asks for -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (MULTI, {"xi-api-key": "secret"}),
        (SINGLE + "&xi_api_key=secret", {}),
        (SPEAK, {"Authorization": "Token secret"}),
        (SPEAK, {"Authorization": "Bearer secret"}),
        (CARTESIA, {"X-API-Key": "secret"}),
        (CARTESIA + "?api_key=secret", {}),
    ],
)
async def test_each_vendors_key_is_the_key(
    serve: Serve, path: str, headers: dict[str, str]
) -> None:
    server = serve(api_keys=("secret",))
    async with wire(server, path, additional_headers=headers) as client:
        assert client.socket.response is not None
    with pytest.raises(InvalidStatus) as refused:
        async with wire(server, path.replace("secret", "wrong")):
            pass
    assert refused.value.response.status_code == 401


@pytest.mark.parametrize(
    "path", [CARTESIA + "?access_token=", SINGLE + "&single_use_token=", SPEAK + "&token="]
)
async def test_a_token_opens_one_socket(serve: Serve, path: str) -> None:
    server = serve(api_keys=("secret",))
    key = {"Authorization": "Bearer secret"}
    answer = (await asyncio.to_thread(post, server, "/v1/tokens", b"", **key))[2]
    token = json.loads(answer)["token"]
    async with wire(server, path + token):
        pass
    with pytest.raises(InvalidStatus):
        async with wire(server, path + token):
            pass


@pytest.mark.parametrize(
    ("path", "header", "body"),
    [
        ("/v1/audio/speech", "Authorization: Bearer", {"input": "Hi."}),
        ("/v1/text-to-speech/alice", "xi-api-key:", {"text": "Hi."}),
        ("/v1/speak", "Authorization: Token", {"text": "Hi."}),
        ("/tts/bytes", "X-API-Key:", {**SOUND, "transcript": "Hi."}),
    ],
)
async def test_each_vendors_key_is_the_key_over_http(
    serve: Serve, path: str, header: str, body: dict[str, Any]
) -> None:
    server = serve(api_keys=("secret",))
    name, _, scheme = header.partition(":")

    def status(key: str) -> int:
        return post(server, path, body, **{name: f"{scheme} {key}".strip()})[0]

    assert await asyncio.to_thread(status, "secret") == 200
    assert await asyncio.to_thread(status, "wrong") == 401


@pytest.mark.parametrize(
    "path",
    [
        "/v1/text-to-speech/alice/multi-stream-input?output_format=pcm_11025",
        "/v1/text-to-speech/alice/multi-stream-input?output_format=midi",
        "/v1/text-to-speech/.%2Fx/stream-input",
        "/v1/speak?encoding=mp3",
        "/v1/speak?encoding=linear16&sample_rate=11025",
        "/v1/speak?encoding=linear16&sample_rate=many",
    ],
)
async def test_what_does_not_exist_is_refused_before_the_upgrade(shared: Any, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with wire(shared, path):
            pass
    assert refused.value.response.status_code in (400, 404)


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/v1/audio/speech", {"input": ""}, ("error", "message")),
        ("/v1/audio/speech", {"input": "Hi.", "speed": 9}, ("error", "message")),
        ("/v1/audio/speech", {"input": "Hi.", "stream_format": "x"}, ("error", "message")),
        ("/v1/audio/speech", b"{", ("error", "message")),
        ("/v1/text-to-speech/alice", {}, ("detail", "message")),
        ("/v1/text-to-speech/nobody", {"text": "Hi."}, ("detail", "message")),
        ("/v1/speak?encoding=aac", {"text": "Hi."}, ("err_msg",)),
        ("/tts/bytes", {**SOUND, "voice": {"mode": "embedding"}}, ("message",)),
        (
            "/tts/sse",
            {**SOUND, "transcript": "x", "output_format": {"container": "x"}},
            ("message",),
        ),
    ],
)
async def test_what_is_wrong_is_said_in_the_vendors_shape(
    shared: Any, path: str, body: object, where: tuple[str, ...]
) -> None:
    status, _, answer = await asyncio.to_thread(post, shared, path, body)
    assert status == 400
    value = json.loads(answer)
    for key in where:
        value = value[key]
    assert isinstance(value, str) and value


@pytest.mark.parametrize(
    ("path", "key"), [(MULTI, "error"), (SPEAK, "description"), (CARTESIA, "message")]
)
async def test_nonsense_is_answered_and_the_socket_lives(shared: Any, path: str, key: str) -> None:
    async with wire(shared, path) as client:
        for frame in ("{", "[]", b"\x00", '{"text": 5, "type": "Speak", "transcript": 5}'):
            await client.socket.send(frame)
            answer = await client.next()
            while key not in answer:  # Deepgram greets
                answer = await client.next()
        await client.socket.ping()


@pytest.mark.parametrize(
    ("path", "body", "head"),
    [
        ("/v1/text-to-speech/alice?output_format=mp3_22050_32", {"text": "Hi."}, b"ID3"),
        ("/v1/text-to-speech/alice/stream?output_format=opus_48000_96", {"text": "Hi."}, b"OggS"),
        ("/v1/text-to-speech/21m00Tcm4TlvDq8ikWAM?output_format=wav_16000", {"text": "a"}, b"RIFF"),
        ("/v1/speak", {"text": "Hi."}, b"ID3"),
        ("/v1/speak?encoding=linear16", {"text": "Hi."}, b"RIFF"),
        ("/v1/speak?encoding=opus", {"text": "Hi."}, b"OggS"),
        (
            "/tts/bytes",
            {**SOUND, "transcript": "Hi.", "output_format": {"container": "mp3"}},
            b"ID3",
        ),
        (
            "/tts/bytes",
            {
                **SOUND,
                "transcript": "Hi.",
                "output_format": {"container": "wav", "encoding": "pcm_s16le"},
            },
            b"RIFF",
        ),
    ],
)
async def test_formats_over_http(shared: Any, path: str, body: object, head: bytes) -> None:
    status, _, answer = await asyncio.to_thread(post, shared, path, body)
    assert status == 200
    assert answer.startswith(head)


async def test_telephone_sound_and_floats_over_the_sockets(shared: Any) -> None:
    text = "Hi there. "
    path = "/v1/text-to-speech/alice/multi-stream-input?output_format="
    for name, bytes_a_second in (("ulaw_8000", 8000), ("alaw_8000", 8000), ("pcm_16000", 32_000)):
        async with wire(shared, path + name) as client:
            await client.send(words(text, flush=True), {"context_id": "a", "close_context": True})
            heard_bytes = 48_000 * seconds(await client.until("isFinal"))
            assert heard_bytes == pytest.approx(bytes_a_second * spoken_s(text))
    for name, bytes_a_second in (("mulaw", 8000), ("alaw", 8000), ("linear16", 48_000)):
        async with wire(shared, f"/v1/speak?encoding={name}") as client:
            await client.send({"type": "Speak", "text": text}, {"type": "Flush"})
            heard_bytes = 48_000 * seconds(await client.until("type", "Flushed"))
            assert heard_bytes == pytest.approx(bytes_a_second * spoken_s(text))
    for name, rate, width in (
        ("pcm_f32le", 24_000, 4),
        ("pcm_mulaw", 8000, 1),
        ("pcm_alaw", 8000, 1),
        ("pcm_s16le", 16_000, 2),
    ):
        output = {"container": "raw", "encoding": name, "sample_rate": rate}
        async with wire(shared, CARTESIA) as client:
            await client.send(request(text, output_format=output, **{"continue": False}))
            heard_bytes = 48_000 * seconds(await client.until("type", "done"))
            assert heard_bytes == pytest.approx(rate * width * spoken_s(text))


async def test_cartesia_events_over_http(shared: Any) -> None:
    body = {**SOUND, "transcript": "Hi there.", "add_timestamps": True}
    status, headers, answer = await asyncio.to_thread(post, shared, "/tts/sse", body)
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.decode().splitlines() if line[:5] == "data:"]
    assert seconds(events) == spoken_s("Hi there.")
    spoken = [
        word for e in events if e["type"] == "timestamps" for word in e["word_timestamps"]["words"]
    ]
    assert spoken == ["Hi", "there."]
    assert events[-1]["type"] == "done"


async def test_times_of_stream_input_count_from_the_message_or_from_the_context(
    shared: Any,
) -> None:
    for query, absolute in (("", False), ("&sync_alignment=true", True)):
        async with wire(shared, SINGLE + query) as client:
            await client.send(
                {"text": "One two three. "}, {"text": "Four five six. "}, {"text": ""}
            )
            messages = await client.until("isFinal")
            assert await client.close_code() == 1000
        end_ms, text = 0, ""
        for alignment in (m["alignment"] for m in messages if m.get("alignment")):
            starts, durations = alignment["charStartTimesMs"], alignment["charDurationsMs"]
            assert starts == sorted(starts)
            if absolute:
                assert starts[0] >= end_ms
            end_ms = starts[-1] + durations[-1] + (0 if absolute else end_ms)
            text += "".join(alignment["chars"])
        assert text == "One two three. Four five six. "
        assert end_ms == pytest.approx(1000 * seconds(messages), abs=1)


async def test_a_server_that_goes_away_opens_no_more_contexts(serve: Serve) -> None:
    server = serve(FakeEngine(speed=2.0, voices=("alice",)))
    async with wire(server, MULTI) as client:
        await client.send(words("This one is spoken to its end. ", flush=True))
        await client.until("isFinal", False)
        await client.send({"context_id": "a", "close_context": True})
        server.server.should_exit = True
        await server.until(lambda: server.server.gateway.draining)
        await client.send(words("No more. ", "late"))
        messages = await client.until("isFinal")
        assert [m["error"] for m in messages if m.get("contextId") == "late"] == [
            "server is shutting down"
        ]


async def test_speech_is_as_fast_as_asked(shared: Any) -> None:
    text, fast = "This is said in half the time. ", {"speed": 2.0}
    usual_s = spoken_s(text)
    async with wire(shared, MULTI) as client:
        await client.send(words(" ", voice_settings=fast), words(text, flush=True))
        await client.send({"context_id": "a", "close_context": True})
        assert seconds(await client.until("isFinal")) == pytest.approx(usual_s / 2, rel=0.05)
    async with wire(shared, SPEAK + "&speed=2") as client:
        await client.send({"type": "Speak", "text": text}, {"type": "Flush"})
        assert seconds(await client.until("type", "Flushed")) == pytest.approx(
            usual_s / 2, rel=0.05
        )
    async with wire(shared, CARTESIA) as client:
        await client.send(request(text, generation_config=fast, **{"continue": False}))
        assert seconds(await client.until("type", "done")) == pytest.approx(usual_s / 2, rel=0.05)
