"""The exchanges of docs/protocol.md, replayed byte for byte; and its tables against the code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from websockets.exceptions import ConnectionClosed

from shoal.proto.errors import CLOSE_CODES
from shoal.proto.request import PCM_RATES

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
EXCHANGES = re.findall(r"^```exchange\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
DIALOGUES = re.findall(r"^```dialogue\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def of_hex(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def without_time(frame: bytes) -> tuple[dict[str, Any], bytes]:
    event = msgpack.unpackb(frame)
    event.pop("time", None)
    return event, msgpack.packb(event)


@pytest.mark.parametrize("exchange", EXCHANGES, ids=["turn", "bad"])
async def test_the_server_answers_as_the_page_says(
    shared: Any, dial: Callable[..., Any], exchange: str
) -> None:
    async with dial(shared) as live:
        socket = live.socket
        ahead: bytes | None = None
        for line in exchange.splitlines():
            if line.startswith("> "):
                await socket.send(of_hex(line[2:]))
            elif line.startswith("< close "):
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == int(line.removeprefix("< close "))
            elif "..." in line:
                start, _, count = line[2:].partition("...")
                event, frame = without_time(await socket.recv())
                assert frame.startswith(of_hex(start))
                total = 0
                while event["event"] == "audio":
                    total += len(event["audio"])
                    event, ahead = without_time(await socket.recv())
                assert f"{total} bytes of audio" == count.strip()
            else:
                frame = ahead if ahead is not None else without_time(await socket.recv())[1]
                ahead = None
                assert frame == of_hex(line[2:])


@pytest.mark.parametrize("dialogue", DIALOGUES)
async def test_a_browser_is_answered_as_the_page_says(
    shared: Any, dial: Callable[..., Any], dialogue: str
) -> None:
    async with dial(shared, "?protocol=json") as live:
        said: list[str] = []
        for line in [*dialogue.splitlines(), "> "]:
            if line.startswith("< "):
                said.append(line[2:])
                continue
            sizes = [int(text.split()[0]) for text in said if text.endswith("bytes of audio")]
            events = [json.loads(text) for text in said if text.startswith("{")]
            heard, size = [], 0
            while len(heard) < len(events) or size < sum(sizes):
                frame = await live.socket.recv()
                if isinstance(frame, bytes):
                    size += len(frame)
                else:
                    heard.append(json.loads(frame))
            assert heard == events and size == sum(sizes)
            said.clear()
            if line != "> ":
                await live.socket.send(line[2:])


def test_the_page_has_all_exchanges() -> None:
    assert [len(exchange.splitlines()) for exchange in EXCHANGES] == [7, 6]
    assert [len(dialogue.splitlines()) for dialogue in DIALOGUES] == [11]


def test_the_page_names_every_close_code_and_rate() -> None:
    for code in CLOSE_CODES.values():
        assert f"| {code} |" in PAGE
    assert " ".join(map(str, PCM_RATES)) in PAGE
