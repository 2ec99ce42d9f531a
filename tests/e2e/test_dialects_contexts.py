"""Other vendors' wires by hand: contexts side by side, freed, refused, failed; text as it comes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from shoal.engine import api
from shoal.engine.fake import FakeEngine
from shoal.engine.frontend import make_frontend
from shoal.realtime.contexts import MAX_OPEN
from tests.dialects import (
    CARTESIA,
    MULTI,
    SINGLE,
    SPEAK,
    RecordingEngine,
    request,
    seconds,
    spoken_s,
    wire,
    words,
)

Serve = Callable[..., Any]


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
        long = "This goes on and on and on. " * 20
        await client.send(words(long))
        await client.until("isFinal", False)
        await client.send({"context_id": "a", "close_context": True})
        assert seconds(await client.until("isFinal")) < spoken_s(long) / 2
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
        long = "This goes on and on and on. " * 20
        await client.send(words(long, flush=True), close)
        await client.until("isFinal", False)
        await client.send(close)
        assert seconds(await client.until("isFinal")) < spoken_s(long) / 2


async def test_a_name_used_again_at_once_is_not_linked_to_the_one_before(shared: Any) -> None:
    close = {"context_id": "a", "close_context": True}
    async with wire(shared, MULTI) as client:
        await client.send(words("The first. ", flush=True), close)
        await client.send(words("The second one. ", flush=True), close)
        assert seconds(await client.until("isFinal")) == spoken_s("The first.")
        assert seconds(await client.until("isFinal")) == spoken_s("The second one.")


@pytest.mark.field_row(7, 8, 9)
@pytest.mark.parametrize("path", [MULTI, CARTESIA], ids=["elevenlabs", "cartesia"])
async def test_a_name_used_again_leaves_its_socket_read(serve: Serve, path: str) -> None:
    """However much is said under it while the one before speaks: a barge-in is obeyed at once."""
    server = serve(FakeEngine(speed=1.2, voices=("alice",)))
    long = "This goes on and on and on. " * 20
    end = {"context_id": "a", "close_context": True, "cancel": True}
    async with wire(server, path) as client:
        if path == MULTI:
            await client.send(words(long, flush=True), end)
            await client.send(*(words("More. ") for _ in range(80)))
            await client.send(end, {"context_id": "b", "text": 5})
        else:
            await client.send(request(long, **{"continue": False}))
            await client.send(*(request("More. ", flush=True) for _ in range(80)))
            await client.send(end, {"context_id": "b", "transcript": 5})
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        name = "contextId" if path == MULTI else "context_id"
        messages = await client.until(name, "b")
        assert "must be a string" in messages[-1]["message"]
        over = ("isFinal", True) if path == MULTI else ("type", "done")
        while sum(message.get(over[0]) == over[1] for message in messages) < 2:
            messages.append(await client.next())
        assert loop.time() - began_s < 3.0
        assert seconds(messages) < spoken_s(long) / 4
        await server.until(lambda: server.engine.stats().streams_open == 0)


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
        assert 0.9 < loop.time() - began_s < 10.0


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


# Text ---------------------------------------------------------------------------------------------


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


# Anything at all --------------------------------------------------------------------------------

VALUES: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1e308, "", " ", "a", "b", "Hi. ", "x" * 300, "\ud800", "<a", "[b]"),
    *([], {}, [1], 10**400, {"speed": "fast"}, {"speed": 1e999}, {"speed": 10**400}),
    *({"mode": "id", "id": "alice"}, {"id": 5}),
    *(
        {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8000.5},
        "Speak",
        "Flush",
        "Clear",
    ),
)
KEYS = (
    *("text", "context_id", "contextId", "flush", "close_context", "voice_settings", "type"),
    *("transcript", "continue", "cancel", "voice", "output_format", "max_buffer_delay_ms"),
    *("add_timestamps", "generation_config"),
)


@pytest.mark.parametrize("path", [MULTI, SPEAK, CARTESIA], ids=["multi", "speak", "cartesia"])
async def test_no_message_harms_what_comes_after_it(serve: Serve, path: str) -> None:
    chance = random.Random(path)
    server = serve(FakeEngine(speed=500.0, voices=("alice",)))
    async with wire(server, path) as client:
        reading = asyncio.create_task(client.close_code())
        for _ in range(400):
            keys = chance.sample(KEYS, chance.randint(1, 6))
            await client.send({key: chance.choice(VALUES) for key in keys})
        pong = await client.socket.ping()
        await asyncio.wait_for(pong, 30)
        assert not reading.done()
        reading.cancel()
    assert server.metric('shoal_errors_total{fault="engine"}') == 0
    await server.until(lambda: server.engine.stats().streams_open == 0)
