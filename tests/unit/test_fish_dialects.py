"""How the variants of Fish's live protocol write the same messages."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from shoal.proto.codec import encode_start
from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import (
    Aligned,
    Audio,
    Cancelled,
    Error,
    Finish,
    Flush,
    Flushed,
    Heard,
    Log,
    Ready,
    Start,
    Text,
    TtsRequest,
    Word,
)
from shoal.realtime.dialects.fish_json import FishJson
from shoal.realtime.dialects.fish_timestamps import FishTimestamps
from shoal.realtime.dialects.fish_wire import FishWire

WORD = Word("One", 0.0, 0.25, 0, 3)


def aligned(segment: int, final: bool, text: str = "One. ") -> Aligned:
    return Aligned(segment, text, 1.5 * segment, 1.5, (WORD,), final)


def sent(wire: FishWire, message: Any, time_ms: int | None = 5) -> list[dict[str, Any]]:
    return [msgpack.unpackb(payload) for payload in wire.encode(message, time_ms)]


# What the client sends --------------------------------------------------------------------------


@pytest.mark.parametrize("wire", [FishWire(), FishTimestamps(), FishJson()])
def test_json_and_messagepack_are_the_same_events_on_every_socket(wire: FishWire) -> None:
    assert wire.decode('{"event": "text", "text": "a \\u00e9"}') == Text("a \u00e9")
    assert wire.decode(msgpack.packb({"event": "flush", "id": "f"})) == Flush("f")


@pytest.mark.parametrize(
    ("wire", "ready", "timestamps"),
    [
        (FishWire(), False, False),
        (FishWire(ready=True), True, False),
        (FishWire(timestamps=True), False, True),
        (FishTimestamps(), False, True),
        (FishJson(), True, False),
        (FishJson(timestamps=True), True, True),
    ],
)
def test_a_socket_may_ask_for_all_its_turns(wire: FishWire, ready: bool, timestamps: bool) -> None:
    start = wire.decode(encode_start({"format": "pcm"}))
    assert start == Start(TtsRequest(format="pcm"), timestamps, ready)
    start = wire.decode('{"event": "start", "timestamps": true, "ready": true}')
    assert isinstance(start, Start) and start.timestamps and start.ready


@pytest.mark.parametrize("frame", ["", "x", "[1]", "5", "[" * 60_000, '{"event": 5}', '{"a": NaN'])
def test_a_text_frame_that_is_no_event_is_malformed(frame: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        FishWire().decode(frame)
    assert caught.value.code is Code.MALFORMED


def test_json_that_unpacks_to_too_much_is_too_big() -> None:
    with pytest.raises(ProtocolError) as caught:
        FishWire().decode('{"event":"text","x":[' + "0," * 2_000_000 + "0]}")
    assert caught.value.code is Code.TOO_BIG


def test_a_lone_surrogate_in_json_is_replaced() -> None:
    text = FishWire().decode('{"event": "text", "text": "a\\ud83db"}')
    assert text == Text("a\ufffdb")


# What the server sends --------------------------------------------------------------------------


def test_a_context_id_comes_back_on_all_that_belongs_to_its_turn() -> None:
    wire = FishWire()
    plain = [Audio(b"a"), Finish("stop"), Flushed("f", 1.0), Cancelled(1.0), aligned(0, True)]
    assert not any("context_id" in sent(wire, message)[0] for message in plain)
    wire.decode('{"event": "start", "context_id": "turn-1"}')
    assert all(sent(wire, message)[0]["context_id"] == "turn-1" for message in plain)
    assert "context_id" not in sent(wire, Error("no"))[0] | sent(wire, Log("hm"))[0]
    wire.decode('{"event": "start", "context_id": 7}')
    assert sent(wire, Audio(b"a"))[0]["context_id"] == 7
    wire.decode('{"event": "start"}')
    assert sent(wire, Audio(b"a")) == [{"event": "audio", "audio": b"a", "time": 5}]


def test_a_browser_gets_json_as_text_and_audio_as_it_is() -> None:
    wire = FishJson()
    assert wire.encode(Audio(b"\1\2"), 5) == [b"\1\2"]
    messages = [
        Ready("pcm", 24_000, "m"),
        Flushed("f", 0.5),
        Cancelled(0.25, Heard("One", 3)),
        aligned(0, True),
        Finish("stop"),
        Error("no"),
    ]
    for message in messages:
        [text] = wire.encode(message, 5)
        assert isinstance(text, str)
        assert json.loads(text) == sent(FishWire(), message)[0]


def test_with_timestamps_news_travel_with_the_next_audio_and_are_told_once() -> None:
    wire = FishTimestamps()
    assert wire.encode(aligned(0, False), 5) == []
    [first], [second] = sent(wire, Audio(b"a")), sent(wire, Audio(b"b"))
    assert first == {
        "event": "audio",
        "audio": b"a",
        "time": 5,
        "content": "One. ",
        "alignment": {
            "segments": [{"text": "One", "start": 0.0, "end": 0.25}],
            "audio_duration": 1.5,
            "estimated": True,
        },
        "chunk_seq": 0,
        "chunk_audio_offset_sec": 0.0,
    }
    assert second == {**first, "audio": b"b", "alignment": None}


def test_the_last_news_of_a_segment_travel_with_empty_audio() -> None:
    wire = FishTimestamps()
    [last] = sent(wire, aligned(0, True))
    assert last["audio"] == b"" and last["alignment"]["audio_duration"] == 1.5
    assert wire.encode(aligned(1, False, "Two."), 5) == []
    [next_] = sent(wire, Audio(b"a"))
    assert (next_["chunk_seq"], next_["content"], next_["chunk_audio_offset_sec"]) == (
        1,
        "Two.",
        1.5,
    )
    assert sent(wire, Finish("stop")) == [{"event": "finish", "reason": "stop", "time": 5}]


def test_the_next_turn_knows_nothing_of_the_last_one_s_segments() -> None:
    wire = FishTimestamps()
    wire.encode(aligned(3, False), 5)
    wire.decode(encode_start({}))
    [first] = sent(wire, Audio(b"a"))
    assert (first["content"], first["alignment"], first["chunk_seq"]) == ("", None, 0)
