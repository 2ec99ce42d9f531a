"""The built-in voice, interrupted, acknowledged and aligned, through a real server process."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect

REQUEST = {"format": "pcm", "sample_rate": 24_000, "seed": 3}
FIRST = "Well, the train leaves at seven, and arrives at nine."
SECOND = "Please hold the line while I look for the right department."


@pytest.fixture(scope="module")
def address(built_in: str) -> str:
    return built_in.replace("http", "ws", 1) + "/v1/tts/live"


async def send(socket: ClientConnection, event: str, **fields: Any) -> None:
    await socket.send(msgpack.packb({"event": event, **fields}))


async def until(socket: ClientConnection, name: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while not events or events[-1]["event"] != name:
        frame = await asyncio.wait_for(socket.recv(), 60)
        assert isinstance(frame, bytes)
        events.append(msgpack.unpackb(frame))
        assert events[-1]["event"] != "error", events[-1]
    return events


def audio(events: list[dict[str, Any]]) -> bytes:
    return b"".join(event["audio"] for event in events if event["event"] == "audio")


async def test_flushes_alignments_and_an_interruption_of_real_speech(address: str) -> None:
    async with connect(address, compression=None) as socket:
        await send(socket, "start", request=REQUEST, timestamps=True)
        await send(socket, "flush", id="empty")
        assert (await until(socket, "flushed"))[-1]["audio_ms"] == 0
        pcm, finals = b"", list[dict[str, Any]]()
        for number, text in enumerate((FIRST, SECOND)):
            await send(socket, "text", text=text)
            await send(socket, "flush", id=number)
            events = await until(socket, "flushed")
            pcm += audio(events)
            assert events[-1]["id"] == number
            assert events[-1]["audio_ms"] == pytest.approx(len(pcm) / 48, abs=1)
            finals += [e for e in events if e["event"] == "aligned" and e["final"]]
        assert "".join(e["text"] for e in finals) == FIRST + SECOND
        words = [(e, w) for e in finals for w in e["words"]]
        assert len(words) == len((FIRST + " " + SECOND).split())
        starts = [e["offset_s"] + w["start_s"] for e, w in words]
        assert starts == sorted(starts) and len(set(starts)) == len(starts)
        assert all(w["end_s"] <= e["audio_s"] + 0.001 for e, w in words)
        # Words are where something is heard.
        level = np.square(np.frombuffer(pcm, "<i2").astype(np.float64)).reshape(-1, 480).mean(1)
        loud = level > level.max() / 10**4
        heard = [
            loud[int(50 * (e["offset_s"] + w["start_s"])) : int(50 * (e["offset_s"] + w["end_s"]))]
            for e, w in words
        ]
        assert all(hops.any() for hops in heard) and np.concatenate(heard).mean() > 0.7
        await send(socket, "text", text=" " + FIRST * 20)
        await until(socket, "audio")
        half_s = finals[-1]["offset_s"] + finals[-1]["words"][5]["end_s"]
        await send(socket, "cancel", audio_ms=1000 * half_s)
        cut = (await until(socket, "cancelled"))[-1]
        assert cut["audio_ms"] >= len(pcm) / 48
        assert cut["heard"]["text"] == FIRST + "Please hold the line while I"
        await send(socket, "start", request=REQUEST)
        await send(socket, "text", text=FIRST)
        await send(socket, "stop")
        again = audio(await until(socket, "finish"))
    assert len(again) / 48_000 == pytest.approx(
        finals[0]["audio_s"], rel=0.02
    )  # and it is the same speech, from the same seed
