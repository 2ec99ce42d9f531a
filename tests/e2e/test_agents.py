"""What agents need beyond Fish's protocol, over loopback: cancel, acknowledgements, timestamps."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from shoal.engine.fake import FakeEngine
from shoal.engine.fake_tone import tone

Serve = Callable[..., Any]
Dial = Callable[..., Any]
PLAIN = {"prosody": {"normalize_loudness": False}}
PCM = {"format": "pcm", "sample_rate": 24_000, **PLAIN}
LONG = "This is a sentence of some length, which is spoken for a while. "
FORMATS = [
    PCM,
    {"format": "pcm", "sample_rate": 8_000},
    {"format": "opus", "sample_rate": 48_000},
    {"format": "mp3", "sample_rate": 44_100},
]


def seconds(text: str) -> float:
    return len(tone(text, "", 0, 24_000, 1_200)) / 2 / 24_000


async def until(socket: Any, name: str) -> list[dict[str, Any]]:
    """All events up to the first of this name."""
    return (await socket.hear(name)).events


# Cancel -----------------------------------------------------------------------------------------


@pytest.mark.field_row(7, 8, 9)
async def test_a_cancel_ends_the_turn_at_once_and_the_socket_speaks_on(
    serve: Serve, dial: Dial
) -> None:
    server = serve(FakeEngine(speed=4.0))
    async with dial(server) as socket:
        for _ in range(3):
            await socket.start()
            await socket.send("text", text=LONG * 20)
            await until(socket, "audio")
            await socket.send("cancel")
            events = await until(socket, "cancelled")
            assert {event["event"] for event in events[:-1]} <= {"audio"}
            assert 0 < events[-1]["audio_ms"] < 1000 * seconds(LONG * 20) / 4
            await server.until(lambda: server.engine.stats().slots_busy == 0, 10.0)
        await socket.say("One.")
        heard = await socket.hear()
        assert heard.reason == "stop" and heard.audio == tone("One.", "", 0, 24_000, 1_200)
    assert server.metric('shoal_turns_ended_total{end="cancelled"}') == 3


async def test_a_cancel_says_how_much_was_sent_of_what_was_made(serve: Serve, dial: Dial) -> None:
    """The engine is as far ahead as it may be; what waited is never sent."""
    server = serve(FakeEngine(speed=1000.0))
    async with dial(server) as socket:
        await socket.say(LONG * 40)
        events = await until(socket, "audio")
        await socket.send("cancel")
        events += await until(socket, "cancelled")
        sent_s = sum(len(e["audio"]) for e in events if e["event"] == "audio") / 48_000
        assert events[-1]["audio_ms"] / 1000 == pytest.approx(sent_s, abs=0.001)
        assert sent_s < seconds(LONG) * 40
        await socket.say("One.")
        assert (await socket.hear()).audio == tone("One.", "", 0, 24_000, 1_200)


async def test_cancel_has_an_answer_whenever_it_is_said(shared: Any, dial: Dial) -> None:
    async with dial(shared) as socket:
        await socket.send("cancel")
        assert (await socket.next())["error"] == "the first event must be start"
        await socket.start()
        await socket.send("cancel")
        assert await socket.next() == {"event": "cancelled", "audio_ms": 0}
        await socket.send("cancel")
        assert await socket.next() == {"event": "cancelled", "audio_ms": 0}
        await socket.send("text", text="too late")
        await socket.say("One.")
        heard = await socket.hear()
        assert heard.audio == tone("One.", "", 0, 24_000, 1_200) and not heard.errors


async def test_a_cancelled_socket_outlives_the_grace(serve: Serve, dial: Dial) -> None:
    server = serve(grace_s=0.05)
    async with dial(server) as socket:
        await socket.say("One.")
        await socket.hear()
        await socket.send("cancel")
        await until(socket, "cancelled")
        async with dial(server) as other:  # which nobody cancelled
            await other.say("One.")
            assert (await other.hear_all()).close_code == 1000
        await socket.say("Two.")
        assert (await socket.hear()).reason == "stop"


# Flush with an id -------------------------------------------------------------------------------


@pytest.mark.field_row(24)
@pytest.mark.parametrize("request_", FORMATS)
async def test_a_flush_is_acknowledged_behind_all_of_its_audio(
    shared: Any, dial: Dial, request_: dict[str, Any]
) -> None:
    async with dial(shared) as socket:
        await socket.start(**request_)
        said = ""
        for text, mark in (("One two.", "a"), (" Three four five.", 2)):
            said += text
            await socket.send("text", text=text)
            await socket.send("flush", id=mark)
            events = await until(socket, "flushed")
            assert any(event["event"] == "audio" for event in events)
            assert events[-1]["id"] == mark
        whole_s = seconds("One two.") + seconds("Three four five.")
        assert events[-1]["audio_ms"] / 1000 == pytest.approx(whole_s, abs=0.35)
        assert events[-1]["audio_ms"] / 1000 >= whole_s - 0.001
        await socket.send("flush", id="nothing new")
        assert (await socket.next())["id"] == "nothing new"
        await socket.send("flush")  # without an id nobody asked
        await socket.send("stop")
        await socket.send("flush", id="late")
        assert [e["event"] for e in await until(socket, "flushed")][-1] == "flushed"


async def test_a_flush_of_nothing_and_of_nothing_speakable_is_acknowledged(
    shared: Any, dial: Dial
) -> None:
    async with dial(shared) as socket:
        await socket.start()
        await socket.send("flush", id=1)
        assert await socket.next() == {"event": "flushed", "id": 1, "audio_ms": 0}
        await socket.send("text", text="...")
        await socket.send("flush", id=2)
        events = await until(socket, "flushed")
        assert events[-1] == {"event": "flushed", "id": 2, "audio_ms": 400}
        await socket.send("text", text=" ")
        await socket.send("flush", id=3)
        assert await socket.next() == {"event": "flushed", "id": 3, "audio_ms": 400}


# Timestamps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", FORMATS)
async def test_words_are_timed_within_the_audio_and_before_it_ends(
    shared: Any, dial: Dial, request_: dict[str, Any]
) -> None:
    async with dial(shared) as socket:
        await socket.send("start", request=request_, timestamps=True)
        await socket.send("text", text="One two, three. Four five. ")
        await socket.send("stop")
        heard = await socket.hear()
    names = [event["event"] for event in heard.events]
    assert names[-1] == "finish" and names.index("aligned") < len(names) - 1
    finals = [e for e in heard.events if e["event"] == "aligned" and e["final"]]
    assert [e["text"].strip() for e in finals] == ["One two, three.", "Four five."]
    starts = [e["offset_s"] + word["start_s"] for e in finals for word in e["words"]]
    assert len(starts) == 5 and starts == sorted(starts)
    total_s = seconds("One two, three.") + seconds("Four five.")
    end_s = finals[-1]["offset_s"] + finals[-1]["words"][-1]["end_s"]
    assert starts[-1] < end_s <= total_s + 0.001
    assert all(e["estimated"] for e in finals)


async def test_times_stay_with_the_words_over_many_flushes(shared: Any, dial: Dial) -> None:
    """At 16 kHz each flush pushes silence through the resampler, which moves what follows."""
    async with dial(shared) as socket:
        await socket.send(
            "start", request={"format": "pcm", "sample_rate": 16_000}, timestamps=True
        )
        audio_s = [0.0]
        offsets_s: list[float] = []
        for number in range(12):
            await socket.send("text", text="One two.")
            await socket.send("flush", id=number)
            events = await until(socket, "flushed")
            offsets_s.append([e for e in events if e["event"] == "aligned"][-1]["offset_s"])
            size = sum(len(e["audio"]) for e in events if e["event"] == "audio")
            audio_s.append(audio_s[-1] + size / 32_000)
    assert offsets_s == pytest.approx(audio_s[:-1], abs=0.05)


@pytest.mark.parametrize("report", ["played", "cancel"])
async def test_a_cancel_tells_what_was_heard(serve: Serve, dial: Dial, report: str) -> None:
    server = serve(FakeEngine(speed=1000.0))
    first = "Hello there you. "
    async with dial(server) as socket:
        await socket.start()
        await socket.send("text", text=first + LONG * 4)
        await socket.send("flush", id=0)
        await until(socket, "flushed")
        at_ms = round(1000 * seconds(first)) + 700
        if report == "played":
            await socket.send("played", audio_ms=at_ms)
            await socket.send("cancel")
        else:
            await socket.send("cancel", audio_ms=at_ms)
        heard = (await until(socket, "cancelled"))[-1]["heard"]
    assert heard["text"].startswith(first) and (first + LONG).startswith(heard["text"])
    assert len(first) < heard["chars"] == len(heard["text"]) < len(first + LONG)


async def test_the_with_timestamp_endpoint_puts_them_on_audio(shared: Any, dial: Dial) -> None:
    async with dial(shared, "/with-timestamp") as socket:
        await socket.say("One two. Three. ")
        heard = await socket.hear()
    assert heard.reason == "stop"
    assert {e["event"] for e in heard.events} == {"audio", "finish"}
    assert heard.audio == tone("One two.", "", 0, 24_000, 1_200) + tone(
        "Three.", "", 0, 24_000, 1_200
    )
    audio = heard.events[:-1]
    assert all(e["chunk_seq"] in (0, 1) and "time" in e for e in audio)
    latest = {e["chunk_seq"]: e for e in audio if e["alignment"] is not None}
    assert [latest[seq]["content"].strip() for seq in (0, 1)] == ["One two.", "Three."]
    assert [s["text"] for s in latest[0]["alignment"]["segments"]] == ["One", "two"]
    assert latest[0]["alignment"]["audio_duration"] == pytest.approx(seconds("One two."))
    assert latest[1]["chunk_audio_offset_sec"] == pytest.approx(seconds("One two."))
    empty = [e for e in audio if not e["audio"]]
    assert [e["chunk_seq"] for e in empty] == [0, 1]
    assert all(e["alignment"] is not None for e in empty)


# What comes back only when asked for -------------------------------------------------------------


async def test_ready_and_context_id_come_only_when_asked_for(shared: Any, dial: Dial) -> None:
    async with dial(shared) as socket:
        await socket.say("One.")
        plain = (await socket.hear()).events
        assert {frozenset(event) for event in plain} == {
            frozenset(("event", "audio", "time")),
            frozenset(("event", "reason", "time")),
        }
        await socket.send("start", request=PCM, ready=True, context_id="c-1")
        assert await socket.next() == {
            "event": "ready",
            "format": "pcm",
            "sample_rate": 24_000,
            "model": "fake-tone",
            "version": 1,
            "context_id": "c-1",
        }
        await socket.send("text", text="One.")
        await socket.send("stop")
        assert {event["context_id"] for event in (await socket.hear()).events} == {"c-1"}
    async with dial(shared, "?ready=1&timestamps=1") as socket:
        await socket.say("One.")
        assert {e["event"] for e in (await socket.hear()).events} == {
            "ready",
            "aligned",
            "audio",
            "finish",
        }


async def test_a_client_that_writes_json_is_answered_in_messagepack(
    shared: Any, dial: Dial
) -> None:
    async with dial(shared) as socket:
        for message in (
            {"event": "start", "request": PCM},
            {"event": "text", "text": "One."},
            {"event": "stop"},
        ):
            await socket.socket.send(json.dumps(message))
        heard = await socket.hear()
    assert heard.reason == "stop" and heard.audio == tone("One.", "", 0, 24_000, 1_200)
