"""The live wire: every frame of the protocol, and bytes that are none."""

from __future__ import annotations

import math
import time

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.proto import codec
from shoal.proto.errors import CLOSE_CODES, Code, ProtocolError
from shoal.proto.messages import (
    MAX_MESSAGE_BYTES,
    MAX_TEXT_CHARS,
    PROTOCOL_VERSION,
    Aligned,
    Audio,
    Cancel,
    Cancelled,
    ClientMessage,
    Error,
    Finish,
    Flush,
    Flushed,
    Heard,
    Log,
    Played,
    Ready,
    ServerMessage,
    Start,
    Stop,
    Text,
    TtsRequest,
    Unknown,
    Word,
)


def pack(value: object) -> bytes:
    return msgpack.packb(value, unicode_errors="surrogatepass")


def code_of(data: bytes) -> Code:
    with pytest.raises(ProtocolError) as caught:
        codec.decode_client(data)
    return caught.value.code


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"event": "start", "request": {}}, Start(TtsRequest())),
        ({"event": "start"}, Start(TtsRequest())),
        ({"event": "start", "request": None}, Start(TtsRequest())),
        ({"event": "start", "request": {"text": "hi"}}, Start(TtsRequest(text="hi"))),
        ({"event": "text", "text": " a"}, Text(" a")),
        ({"event": "text", "text": ""}, Text("")),
        ({"event": "text"}, Text("")),
        ({"event": "text", "text": None, "extra": [1, {"a": 2}]}, Text("")),
        ({"event": "flush"}, Flush()),
        ({"event": "stop", 7: "odd key", b"k": 1}, Stop()),
        ({"event": "hello"}, Unknown()),
        ({"event": "flush", "id": "f"}, Flush("f")),
        ({"event": "flush", "id": 7}, Flush(7)),
        ({"event": "flush", "id": None}, Flush()),
        ({"event": "cancel"}, Cancel()),
        ({"event": "cancel", "audio_ms": 250}, Cancel(0.25)),
        ({"event": "played", "audio_ms": 1500.0}, Played(1.5)),
        ({"event": "start", "timestamps": True}, Start(TtsRequest(), timestamps=True)),
        ({"event": "start", "timestamps": 1, "ready": "yes"}, Start(TtsRequest())),
        (
            {"event": "start", "ready": True, "context_id": "c"},
            Start(TtsRequest(), ready=True, context_id="c"),
        ),
        ({"event": ""}, Unknown()),
    ],
)
def test_client_frames(frame: object, message: object) -> None:
    assert codec.decode_client(pack(frame)) == message


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", Code.UNDECODABLE),
        (b"\xc1", Code.UNDECODABLE),
        (b"\x81\xa5event", Code.UNDECODABLE),  # truncated
        (pack({"event": "stop"}) + b"\x00", Code.UNDECODABLE),  # trailing bytes
        (b'{"event":"stop"}', Code.UNDECODABLE),  # JSON in a binary frame
        (b"\x91" * 5000 + b"\x01", Code.UNDECODABLE),  # nested past any stack
        (b"\x81\x91\x80\x01", Code.MALFORMED),  # a key that is a list
        (b"\xc7\x05\xff" + b"\xff" * 5, Code.UNDECODABLE),  # a broken timestamp
        (pack(5), Code.MALFORMED),
        (pack(["event", "stop"]), Code.MALFORMED),
        (pack({}), Code.MALFORMED),
        (pack({"event": 5}), Code.MALFORMED),
        (pack({"event": b"stop"}), Code.MALFORMED),
        (pack({"event": "text", "text": 5}), Code.MALFORMED),
        (pack({"event": "text", "text": "x" * (MAX_TEXT_CHARS + 1)}), Code.TOO_BIG),
        (pack({"event": "start", "request": [1]}), Code.BAD_REQUEST),
        (pack({"event": "start", "context_id": 1.5}), Code.BAD_REQUEST),
        (pack({"event": "flush", "id": True}), Code.MALFORMED),
        (pack({"event": "flush", "id": "x" * 257}), Code.MALFORMED),
        (pack({"event": "flush", "id": 1 << 60}), Code.MALFORMED),
        (pack({"event": "played"}), Code.MALFORMED),
        (pack({"event": "played", "audio_ms": -1}), Code.MALFORMED),
        (pack({"event": "played", "audio_ms": math.nan}), Code.MALFORMED),
        (pack({"event": "cancel", "audio_ms": "1"}), Code.MALFORMED),
        (bytes(MAX_MESSAGE_BYTES + 1), Code.TOO_BIG),
    ],
)
def test_what_is_no_message_has_a_code(data: bytes, code: Code) -> None:
    assert code_of(data) is code


def test_a_mebibyte_of_text_without_a_space_is_a_text() -> None:
    text = "x" * MAX_TEXT_CHARS
    assert codec.decode_client(pack({"event": "text", "text": text})) == Text(text)


def test_nul_and_surrogates_are_text() -> None:  # hermes-agent#101666, Rapid-MLX#730
    message = codec.decode_client(pack({"event": "text", "text": "a\0b\ud83dc"}))
    assert isinstance(message, Text)
    assert message.text.startswith("a\0b") and message.text.endswith("c")
    assert message.text.encode("utf-8")  # nothing left that a strict encoder refuses
    torn = b"\x82\xa5event\xa4text\xa4text\xa3a\xe4\xb8"
    assert codec.decode_client(torn) == Text("a\ufffd")


def test_a_small_message_cannot_expand_into_a_large_object() -> None:
    block = b"\xdc\x00\xff" + b"\xc0" * 255
    for _ in range(2):
        block = b"\xdc\x00\xff" + block * 255
    started_s = time.thread_time()
    assert code_of(block) is Code.UNDECODABLE  # 16 million nulls
    assert time.thread_time() - started_s < 0.2


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_protocol_error(data: bytes) -> None:
    try:
        message = codec.decode_client(data)
    except ProtocolError as error:
        assert error.message
    else:
        assert isinstance(message, ClientMessage)


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(["wav", "pcm", "opus", "mp3", "low", math.inf, -math.inf, math.nan])
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | st.integers(-(2**63), 2**64 - 1), inner)
    ),
    max_leaves=6,
)
_REQUEST_KEYS = st.sampled_from([*TtsRequest.__dataclass_fields__, "opus_bitrate", "mp3_bitrate"])
_FRAMES = st.fixed_dictionaries(
    {"event": st.sampled_from(["start", "text", "flush", "stop", "x"]) | _VALUES},
    optional={
        "request": st.dictionaries(_REQUEST_KEYS, _VALUES, max_size=6) | _VALUES,
        "text": _VALUES,
    },
)


@given(_FRAMES)
def test_any_map_gives_a_message_or_a_protocol_error(frame: dict[str, object]) -> None:
    try:
        codec.decode_client(pack(frame))
    except ProtocolError as error:
        assert error.code in (Code.MALFORMED, Code.BAD_REQUEST, Code.UNDECODABLE)


@given(st.binary(max_size=100))
def test_a_client_survives_any_bytes_too(data: bytes) -> None:
    try:
        codec.decode_server(data)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (Audio(b"\x01\x02"), {"event": "audio", "audio": b"\x01\x02", "time": 12}),
        (Finish("stop"), {"event": "finish", "reason": "stop", "time": 12}),
        (
            Finish("error", "gone"),
            {"event": "finish", "reason": "error", "message": "gone", "time": 12},
        ),
        (Error("no"), {"event": "error", "error": "no"}),
        (Error("no", 8), {"event": "error", "error": "no", "max_concurrency": 8}),
        (Log("hm"), {"event": "log", "message": "hm"}),
        (Flushed("f", 1.25), {"event": "flushed", "id": "f", "audio_ms": 1250}),
        (Cancelled(0.5), {"event": "cancelled", "audio_ms": 500}),
        (
            Cancelled(0.5, Heard("One", 3)),
            {"event": "cancelled", "audio_ms": 500, "heard": {"text": "One", "chars": 3}},
        ),
    ],
)
def test_server_frames_have_the_keys_that_clients_index(
    message: ServerMessage, fields: dict[str, object]
) -> None:
    data = codec.encode_server(message, time_ms=12)
    assert msgpack.unpackb(data) == fields
    assert codec.decode_server(data) == message


def test_ready_and_alignments_are_maps_too() -> None:
    assert msgpack.unpackb(codec.encode_server(Ready("pcm", 8000, "m"), 12, "c")) == {
        "event": "ready",
        "format": "pcm",
        "sample_rate": 8000,
        "model": "m",
        "version": PROTOCOL_VERSION,
        "context_id": "c",
    }
    aligned = Aligned(1, "Hi.", 1.5, 0.5, (Word("Hi", 0.0, 0.25, 0, 2),), True, 9)
    assert msgpack.unpackb(codec.encode_server(aligned)) == {
        "event": "aligned",
        "segment": 1,
        "text": "Hi.",
        "offset_s": 1.5,
        "audio_s": 0.5,
        "words": [{"text": "Hi", "start_s": 0.0, "end_s": 0.25, "begin": 0, "end": 2}],
        "final": True,
        "chars": 9,
        "estimated": True,
    }


@given(st.text(max_size=100))
def test_any_text_frame_gives_a_message_or_a_protocol_error(text: str) -> None:
    try:
        codec.decode_client_json(text)
    except ProtocolError as error:
        assert error.code is Code.MALFORMED


def test_audio_is_a_binary_and_not_a_string() -> None:
    assert b"\xc4\x02\x00\x01" in codec.encode_server(Audio(b"\x00\x01"))


def test_an_unknown_server_event_is_none() -> None:
    assert codec.decode_server(pack({"event": "later"})) is None


def test_what_a_client_encodes_a_server_decodes() -> None:
    request = {"format": "pcm", "sample_rate": 24000}
    assert codec.decode_client(codec.encode_start(request)) == Start(
        TtsRequest(format="pcm", sample_rate=24000)
    )
    assert codec.decode_client(codec.encode_text("a")) == Text("a")
    assert codec.decode_client(codec.encode_flush()) == Flush()
    assert codec.decode_client(codec.encode_flush("f")) == Flush("f")
    assert codec.decode_client(codec.encode_cancel()) == Cancel()
    assert codec.decode_client(codec.encode_stop()) == Stop()


def test_close_codes_are_those_of_the_protocol() -> None:
    assert {code.name: close for code, close in CLOSE_CODES.items()} == {
        "UNDECODABLE": 1007,
        "BAD_REQUEST": 1008,
        "TOO_BIG": 1009,
        "ENGINE": 1011,
        "BUSY": 1013,
        "DRAINING": 1001,
    }


def test_no_message_shows_text_or_audio_when_printed() -> None:
    secret = "secret words"
    shown = [repr(Text(secret)), repr(Audio(b"secret words")), repr(TtsRequest(text=secret))]
    assert not any("secret" in line for line in shown)
