"""How a turn becomes events with timestamps, and a form a request."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from shoal.proto.messages import Aligned, Audio, Finish, Word
from shoal.proto.request import parse_request
from shoal.realtime.answers import Refused
from shoal.realtime.bodies import Form
from shoal.realtime.rest.tts import TimestampEvents, form_fields

HELLO = Word("Hello", 0.0, 0.4, 0, 5)


def events_of(*messages: Audio | Aligned | Finish) -> list[dict[str, Any]]:
    write = TimestampEvents()
    text = b"".join(write(message) for message in messages).decode()
    lines = text.split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_snapshot_travels_with_the_next_audio_and_is_news_once() -> None:
    first = Aligned(0, "Hello.\n", 0.0, 0.5, (HELLO,), False)
    events = events_of(first, Audio(b"one"), Audio(b"two"), Finish("stop"))
    assert events == [
        {
            "audio_base64": base64.b64encode(b"one").decode(),
            "content": "Hello.\n",
            "alignment": {
                "segments": [{"text": "Hello", "start": 0.0, "end": 0.4}],
                "audio_duration": 0.5,
                "estimated": True,
            },
            "chunk_seq": 0,
            "chunk_audio_offset_sec": 0.0,
        },
        {
            "audio_base64": base64.b64encode(b"two").decode(),
            "content": "Hello.\n",
            "alignment": None,
            "chunk_seq": 0,
            "chunk_audio_offset_sec": 0.0,
        },
    ]


def test_the_last_snapshot_of_a_segment_goes_at_once_and_alone() -> None:
    last = Aligned(0, "Hello.", 0.0, 0.6, (HELLO,), True)
    second = Aligned(1, "次", 0.6, 0.2, (), False)
    events = events_of(Audio(b"one"), last, second, Audio(b"two"))
    assert [event["audio_base64"] for event in events] == ["b25l", "", "dHdv"]
    assert [event["chunk_seq"] for event in events] == [0, 0, 1]
    assert events[0]["content"] == "" and events[0]["alignment"] is None
    assert events[1]["alignment"]["audio_duration"] == 0.6
    assert (events[2]["content"], events[2]["chunk_audio_offset_sec"]) == ("次", 0.6)


def test_a_snapshot_without_more_audio_goes_with_the_end() -> None:
    events = events_of(Aligned(0, "Hello.", 0.0, 0.5, (HELLO,), False), Finish("stop"))
    assert [event["audio_base64"] for event in events] == [""]


def test_the_values_of_a_form_are_read_as_json_but_for_texts() -> None:
    values = {
        "text": ["12"],
        "format": ["pcm"],
        "temperature": ["0.5"],
        "normalize": ["false"],
        "prosody": ['{"volume": 3}'],
        "reference_id": ["123"],
        "sample_rate": ["8000"],
    }
    request = parse_request(form_fields(Form(values, {})))
    assert (request.text, request.format, request.reference_id) == ("12", "pcm", "123")
    assert (request.temperature, request.normalize, request.sample_rate) == (0.5, False, 8000)
    assert request.prosody.volume_db == 3
    assert form_fields(Form({"seed": ["x"]}, {})) == {"seed": "x"}


def test_recordings_of_a_form_need_as_many_texts() -> None:
    files = {"references": [b"one", b"two"]}
    fields = form_fields(Form({"text": ["x"], "texts": ["a", "b"]}, files))
    assert fields["references"] == [{"audio": b"one", "text": "a"}, {"audio": b"two", "text": "b"}]
    for texts in ({}, {"texts": ["a"]}, {"texts": ["a", "b", "c"]}):
        with pytest.raises(Refused) as refused:
            form_fields(Form(texts, files))
        assert refused.value.refusal.status == 400
