"""The table of field issues: every row has a test, and the rows that no other file is about."""

from __future__ import annotations

import ast
import asyncio
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.fake import FakeEngine

Serve = Callable[..., Any]
Dial = Callable[..., Any]

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "field_issues.md"


def marked_rows(source: str) -> Iterator[int]:
    """The rows that the tests of a module name."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.field_row":
                yield from (ast.literal_eval(row) for row in mark.args)


def test_every_row_of_the_table_has_a_test() -> None:
    table = [int(row) for row in re.findall(r"^\| (\d+) \|", TABLE.read_text("utf-8"), re.M)]
    assert table == list(range(1, 41))
    held = {
        row for path in TESTS.rglob("test_*.py") for row in marked_rows(path.read_text("utf-8"))
    }
    assert sorted(set(table) - held) == []
    assert sorted(held - set(table)) == []


@pytest.mark.field_row(25)
@pytest.mark.parametrize(("name", "rate"), [("pcm", 24_000), ("opus", 48_000)])
async def test_the_end_is_known_with_the_last_audio(
    shared: Any, dial: Dial, name: str, rate: int
) -> None:
    later_s: list[float] = []
    for _ in range(5):  # the machine is shared: the best of a few
        async with dial(shared) as socket:
            await socket.say("The end comes at once.", format=name, sample_rate=rate)
            audio_s = float("inf")
            while (event := await socket.next())["event"] != "finish":
                audio_s = asyncio.get_running_loop().time()
            assert event["reason"] == "stop"
            later_s.append(asyncio.get_running_loop().time() - audio_s)
    assert min(later_s) < 0.1


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.field_row(37)
async def test_memory_and_descriptors_stay_flat_over_many_sessions(
    serve: Serve, dial: Dial
) -> None:
    """Server and client are this process: what either leaks is seen."""
    voices = tuple(f"voice{number}" for number in range(20))
    server = serve(FakeEngine(slots=4, speed=200.0, voices=voices))

    async def session(number: int) -> None:
        async with dial(server) as socket:
            voice = voices[number % len(voices)]
            await socket.start(format="wav", reference_id=voice)
            await socket.send("text", text="One sentence is enough. And another one.")
            if number % 3 == 0:
                socket.vanish()
                return
            await socket.send("stop")
            if number % 3 == 1:
                await socket.next()
            else:
                assert (await socket.hear()).reason == "stop"

    async def sessions(count: int) -> tuple[int, int]:
        for first in range(0, count, 4):
            await asyncio.gather(*(session(first + number) for number in range(4)))
        await server.until(lambda: server.engine.stats().streams_open == 0)
        await server.until(lambda: server.metric("shoal_sockets") == 0)
        return resident_bytes(), len(os.listdir("/proc/self/fd"))

    await sessions(100)
    memory, descriptors = await sessions(100)
    memory_after, descriptors_after = await sessions(300)
    assert descriptors_after <= descriptors + 2
    # 300 leaked turns of 64 KiB each would be three times this.
    assert memory_after - memory < 6 << 20
