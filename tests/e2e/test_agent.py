"""``shoal mcp`` driven by the protocol's own client, over stdio and over streamable HTTP."""

from __future__ import annotations

import asyncio
import base64
import io
import sys
import wave
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from shoal.engine.fake import FakeEngine
from shoal.engine.voices import VoiceStore

Serve = Callable[..., Any]
VOICE = Path(__file__).parents[1] / "data" / "voices"


@asynccontextmanager
async def over_stdio(server: Any, _: int) -> AsyncIterator[Client]:
    command = ["-P", "-m", "shoal.realtime", "mcp", "--url", server.http]
    async with Client(StdioServerParameters(command=sys.executable, args=command)) as client:
        yield client


@asynccontextmanager
async def over_http(server: Any, port: int) -> AsyncIterator[Client]:
    command = ["-P", "-m", "shoal.realtime", "mcp", "--url", server.http, "--http"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--port", str(port), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                assert process.returncode is None
                await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


def said(result: Any) -> str:
    assert not result.is_error, result.content
    return result.content[0].text


def seconds(wav: bytes) -> float:
    with wave.open(io.BytesIO(wav)) as file:
        return file.getnframes() / file.getframerate()


async def test_speaking_into_a_file_over_stdio(
    serve: Serve, unused_tcp_port: int, tmp_path: Path
) -> None:
    async with over_stdio(serve(), unused_tcp_port) as client:
        out = tmp_path / "out.wav"
        answer = said(await client.call_tool("speak", {"text": "Hello there.", "file": str(out)}))
        assert str(out) in answer
        assert seconds(out.read_bytes()) > 0.3
        refused = await client.call_tool("speak", {"text": " ", "file": str(out)})
        assert refused.is_error and "nothing to say" in refused.content[0].text


async def test_speaking_over_http_answers_with_sound(serve: Serve, unused_tcp_port: int) -> None:
    async with over_http(serve(), unused_tcp_port) as client:
        result = await client.call_tool("speak", {"text": "Hello there."})
        assert not result.is_error
        assert seconds(base64.b64decode(result.content[0].data)) > 0.3
        assert result.content[0].mime_type == "audio/wav"
        unknown = await client.call_tool("speak", {"text": "Hello.", "voice": "nobody"})
        assert unknown.is_error


@pytest.mark.parametrize("way", [over_stdio, over_http])
async def test_the_tools_say_what_they_are_for(
    serve: Serve, unused_tcp_port: int, way: Callable[..., Any]
) -> None:
    async with way(serve(), unused_tcp_port) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"speak", "list_voices", "clone_voice"}
        assert all(tool.description for tool in tools.values())
        assert "consent" in (client.instructions or "")


async def test_without_a_server_the_tools_say_how_to_start_one(unused_tcp_port: int) -> None:
    class Nowhere:
        http = f"http://127.0.0.1:{unused_tcp_port}"

    async with over_stdio(Nowhere, 0) as client:
        for tool, arguments in (
            ("speak", {"text": "Hello.", "file": "x.wav"}),
            ("list_voices", {}),
        ):
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert "shoal serve" in result.content[0].text


async def test_a_voice_that_is_cloned_can_speak(
    serve: Serve, unused_tcp_port: int, tmp_path: Path
) -> None:
    voices_dir = tmp_path / "voices"
    server = serve(FakeEngine(speed=50.0, store=VoiceStore(voices_dir)), voices_dir=voices_dir)
    recording = next(VOICE.glob("*.ogg"))
    async with over_stdio(server, unused_tcp_port) as client:
        voice = said(
            await client.call_tool(
                "clone_voice", {"name": "Mine", "file": str(recording), "transcript": "Some words."}
            )
        )
        voices = (await client.call_tool("list_voices", {})).structured_content
        assert {"id": voice, "name": "Mine"} in voices["result"]
        out = str(tmp_path / "out.wav")
        said(await client.call_tool("speak", {"text": "Hello.", "voice": voice, "file": out}))
