"""A server writes down when its turns came, and the load tester plays them again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgpack
from websockets.asyncio.client import connect

from shoal.engine.fake import FakeEngine
from shoal.realtime.cli import main
from tests.e2e.conftest import Serve

SECRET = "Nobody else shall read this sentence."
PIECES = ("Nobody else ", "shall read ", "this sentence.")


async def speak(http: str, pieces: tuple[str, ...], cut: bool = False) -> None:
    url = f"{http.replace('http', 'ws', 1)}/v1/tts/live"
    async with connect(url, compression=None, max_size=None) as socket:
        request = {"text": "", "format": "pcm", "reference_id": "default"}
        await socket.send(msgpack.packb({"event": "start", "request": request}))
        for piece in pieces:
            await socket.send(msgpack.packb({"event": "text", "text": piece}))
            await asyncio.sleep(0.05)
        await socket.send(msgpack.packb({"event": "flush" if cut else "stop"}))
        async for frame in socket:
            event = msgpack.unpackb(frame)["event"]
            if event == "finish" or (cut and event == "audio"):
                break
        if cut:
            await socket.send(msgpack.packb({"event": "cancel"}))
            await asyncio.sleep(0.05)


async def test_what_one_server_recorded_is_played_to_another(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    first = serve(FakeEngine(speed=4.0), record_turns=path)
    for cut in (False, True, False):
        await speak(first.http, PIECES, cut)
    await asyncio.to_thread(first.stop)
    text = path.read_text()
    assert not any(word in text for word in SECRET.split())
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    assert [line["end"] for line in lines] == ["stop", "cancelled", "stop"]
    for line in lines:
        assert [chars for _, chars in line["pieces"]] == [len(piece) for piece in PIECES]
        times = [at_s for at_s, _ in line["pieces"]]
        assert times == sorted(times) and times[-1] - times[0] > 0.08
        assert line["voice"] == "default" and line["audio_s"] > 0 and line["first_s"] > 0
    second = serve(FakeEngine(slots=8, speed=50.0))
    out = tmp_path / "out"
    flags = ["load", "run", second.http.replace("http", "ws", 1), "--replay", str(path)]
    flags += ["--warmup", "0", "--window", "3", "--cooldown", "0", "--cold-every", "0"]
    code = await asyncio.to_thread(main, [*flags, "--quiet", "--out", str(out)])
    assert code == 0
    result = json.loads((out / "result.json").read_text())
    (run,) = result["runs"]
    assert run["mode"] == "replay" and run["name"] == "replay@1"
    spans_s = lines[-1]["at"] - lines[0]["at"]
    due = 3.0 / (spans_s * 1.5) * 3  # the mean gap stands between the last and the first again
    assert 0.6 * due <= run["totals"]["turns"] <= 1.5 * due
