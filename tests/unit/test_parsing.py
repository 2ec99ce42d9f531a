"""Large messages beside the event loop: it goes on, one is parsed at a time, in order."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable

import msgpack
import pytest
from starlette.requests import Request

from shoal.realtime.parsing import LARGE_BYTES, Parsed, Parsing
from shoal.realtime.rest.tts import read_request
from tests.bodies import FORM, JSON, MSGPACK, multipart, request_of

LARGE = LARGE_BYTES + 1
PATIENCE_S = 30.0


async def test_what_is_small_is_parsed_at_once_and_what_is_large_elsewhere() -> None:
    parsing, here = Parsing(), threading.get_ident()
    assert await parsing.run(LARGE_BYTES, threading.get_ident) == here
    assert await parsing.run(LARGE, threading.get_ident) != here


async def test_the_loop_goes_on_meanwhile() -> None:
    parsing, gate = Parsing(), threading.Event()
    parsed = asyncio.create_task(parsing.run(LARGE, lambda: gate.wait(PATIENCE_S)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not parsed.done()
    assert await parsing.run(1, lambda: "small") == "small"
    gate.set()  # by the loop, or it would wait for itself
    assert await parsed


async def test_one_at_a_time_and_in_order() -> None:
    parsing, gate, order = Parsing(), threading.Event(), list[int]()

    def work(number: int) -> None:
        assert number or gate.wait(PATIENCE_S)
        order.append(number)

    runs = [asyncio.create_task(parsing.run(LARGE, lambda n=n: work(n))) for n in range(5)]
    for _ in range(20):  # any other thread would have begun before these
        await asyncio.to_thread(threading.get_ident)
    assert order == []
    gate.set()
    await asyncio.gather(*runs)
    assert order == list(range(5))


async def test_what_cannot_be_parsed_is_told_and_holds_up_nobody() -> None:
    parsing = Parsing()
    for _ in range(2):
        with pytest.raises(ValueError, match="no number"):
            await parsing.run(LARGE, fail)
    assert await parsing.run(LARGE, lambda: 1) == 1


def fail() -> None:
    raise ValueError("no number")


RECORDING = bytes(range(256)) * (16 << 10)
FIELDS = {
    "text": "hi",
    "references": [{"audio": base64.b64encode(RECORDING).decode(), "text": "x"}],
}
PARTS = [("text", None, b"hi"), ("references", "a.wav", RECORDING), ("texts", None, b"x")]


class Watched(Parsing):
    """Says how large what it parsed elsewhere was said to be."""

    def __init__(self) -> None:
        super().__init__()
        self.large: list[int] = []

    async def run(self, size: int, parse: Callable[[], Parsed]) -> Parsed:
        if size > LARGE_BYTES:
            self.large.append(size)
        return await super().run(size, parse)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (JSON, lambda: json.dumps(FIELDS).encode()),
        (JSON, lambda: json.dumps(FIELDS).replace("/", "\\/").encode()),
        (MSGPACK, lambda: msgpack.packb(FIELDS)),
        (FORM, lambda: multipart(PARTS)),
    ],
    ids=["json", "json with escapes", "base64 in msgpack", "form"],
)
async def test_the_loop_goes_on_while_a_large_request_is_read(
    kind: str, body: Callable[[], bytes]
) -> None:
    """Reading alone never waits here: all of the body is there."""
    watched, large = Watched(), body()
    assert await ticks_during(request_of(large, kind=kind, parsing=watched), RECORDING) > 20
    assert watched.large == [len(large)] * 2, "the body, and what is in its fields"
    small = {"text": "hi", "references": [{"audio": "QUJD", "text": "x"}]}
    body_of_small = json.dumps(small).encode()
    assert await ticks_during(request_of(body_of_small, parsing=watched), b"ABC") < 5


async def ticks_during(request: Request, recording: bytes) -> int:
    """How often another task of the loop had its turn until the request was read."""
    reading = asyncio.create_task(read_request(request))
    ticks = 0
    while not reading.done():
        await asyncio.sleep(0)
        ticks += 1
    (reference,) = (await reading).references
    assert reference.audio == recording
    return ticks
