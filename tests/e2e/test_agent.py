"""``shoal mcp`` driven by the protocol's own client, over stdio and over streamable HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import socket
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
async def over_stdio(server: Any, _: int, path: str = os.environ["PATH"]) -> AsyncIterator[Client]:
    command = ["-P", "-m", "shoal.realtime", "mcp", "--url", server.http]
    program = StdioServerParameters(command=sys.executable, args=command, env={"PATH": path})
    async with Client(program) as client:
        yield client


@asynccontextmanager
async def over_http(server: Any, port: int) -> AsyncIterator[Client]:
    async with running(server, port), Client(f"http://127.0.0.1:{port}/mcp") as client:
        yield client


@asynccontextmanager
async def running(server: Any, port: int, *flags: str) -> AsyncIterator[None]:
    command = ["-P", "-m", "shoal.realtime", "mcp", "--url", server.http, "--http"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--port", str(port), *flags, stderr=asyncio.subprocess.DEVNULL
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
        yield
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


def loudspeaker(folder: Path) -> Path:
    """A program in place of ``aplay`` that writes down when it plays; returns its log."""
    log, program = folder / "log", folder / "bin" / "aplay"
    program.parent.mkdir()
    lines = ("#!/bin/sh", f"echo begin >> {log}", "cat > /dev/null", f"echo end >> {log}")
    program.write_text("\n".join(lines))
    program.chmod(0o755)
    return log


def heard(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


async def test_speech_through_the_speakers_never_overlaps(
    serve: Serve, unused_tcp_port: int, tmp_path: Path
) -> None:
    log = loudspeaker(tmp_path)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    async with over_stdio(serve(FakeEngine(speed=20.0)), unused_tcp_port, path) as client:
        calls = [client.call_tool("speak", {"text": f"Number {n}."}) for n in range(4)]
        assert all("played" in said(result) for result in await asyncio.gather(*calls))
    assert heard(log) == ["begin", "end"] * 4


async def test_a_call_that_is_cancelled_falls_silent(
    serve: Serve, unused_tcp_port: int, tmp_path: Path
) -> None:
    log = loudspeaker(tmp_path)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    server = serve(FakeEngine(speed=2.0))
    async with over_stdio(server, unused_tcp_port, path) as client:
        call = asyncio.create_task(client.call_tool("speak", {"text": "Much to be said. " * 200}))
        await server.until(lambda: heard(log) == ["begin"])
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await server.until(lambda: server.engine.stats().streams_open == 0)  # of its two minutes
        assert heard(log) == ["begin"]
        assert "played" in said(await client.call_tool("speak", {"text": "The next."}))


async def test_calls_over_http_speak_side_by_side(serve: Serve, unused_tcp_port: int) -> None:
    async with over_http(serve(), unused_tcp_port) as client:
        calls = [client.call_tool("speak", {"text": f"Number {n}."}) for n in range(4)]
        for result in await asyncio.gather(*calls):
            assert not result.is_error and seconds(base64.b64decode(result.content[0].data)) > 0.3


async def test_a_long_text_is_spoken_or_its_limit_is_said(
    serve: Serve, unused_tcp_port: int, tmp_path: Path
) -> None:
    text = "This sentence is one of many. " * 130
    server = serve(FakeEngine(speed=1000.0))
    async with over_http(server, unused_tcp_port) as client:
        result = await client.call_tool("speak", {"text": text})
        assert not result.is_error, result.content
        assert seconds(base64.b64decode(result.content[0].data)) > 100
        refused = await client.call_tool("speak", {"text": text * 2})
        assert refused.is_error and "in parts" in refused.content[0].text
    async with over_stdio(server, unused_tcp_port) as client:
        out = str(tmp_path / "out.wav")
        refused = await client.call_tool("speak", {"text": text * 6, "file": out})
        assert refused.is_error and "in parts" in refused.content[0].text


async def test_what_is_wrong_with_a_file_is_said(
    serve: Serve, unused_tcp_port: int, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.wav"
    broken.write_text("no sound")
    big = tmp_path / "big.wav"
    with big.open("wb") as file:
        file.truncate(64 << 20)
    async with over_stdio(
        serve(FakeEngine(store=VoiceStore(tmp_path)), voices_dir=tmp_path), unused_tcp_port
    ) as client:
        for tool, arguments, words in (
            ("speak", {"text": "Hi.", "file": str(tmp_path / "notes.txt")}, "must end in .wav"),
            ("speak", {"text": "Hi.", "file": str(tmp_path / "no" / "x.wav")}, "no such folder"),
            ("clone_voice", {"file": str(tmp_path / "none.wav")}, "No such file"),
            ("clone_voice", {"file": "/dev/zero"}, "is not a file"),
            ("clone_voice", {"file": str(big)}, "larger than 32 MiB"),
            ("clone_voice", {"file": str(broken)}, "not a wav"),
        ):
            if tool == "clone_voice":
                arguments = {**arguments, "name": "x", "transcript": "Words."}
            result = await client.call_tool(tool, arguments)
            assert result.is_error and words in result.content[0].text, (arguments, result)


async def test_a_key_that_is_missing_and_a_server_of_another_kind_are_said(
    serve: Serve, unused_tcp_port: int
) -> None:
    server = serve(api_keys=("sesame",))

    class Another:
        http = server.http + "/web/page.css?"

    for where, words in ((server, "--api-key"), (Another, "no shoal server")):
        async with over_stdio(where, unused_tcp_port) as client:
            result = await client.call_tool("list_voices", {})
            assert result.is_error and words in result.content[0].text


async def test_more_voices_than_a_page_holds_are_listed(
    serve: Serve, unused_tcp_port: int, tmp_path: Path
) -> None:
    recording = next(VOICE.glob("*.ogg"))
    server = serve(FakeEngine(store=VoiceStore(tmp_path)), voices_dir=tmp_path)
    async with over_stdio(server, unused_tcp_port) as client:
        for n in range(12):
            fields = {"name": f"Voice {n}", "file": str(recording), "transcript": "Some words."}
            said(await client.call_tool("clone_voice", fields))
        voices = (await client.call_tool("list_voices", {})).structured_content["result"]
    assert {voice["name"] for voice in voices} == {f"Voice {n}" for n in range(12)}


async def status_of(port: int, **headers: str) -> int:
    """Of a first request at the MCP server, as a browser or any other program sends it."""
    body = (
        '{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": '
        '"2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}}'
    )
    fields = {
        "Host": f"127.0.0.1:{port}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n{body}".encode())
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return int(line.split()[1])


async def test_a_name_or_a_page_of_somebody_else_reaches_no_tool(
    serve: Serve, unused_tcp_port: int
) -> None:
    port = unused_tcp_port
    async with running(serve(), port):
        assert await status_of(port) == 200
        assert await status_of(port, Host=f"evil.example:{port}") == 421
        assert await status_of(port, Origin="http://evil.example") == 403
    async with running(serve(), port, "--host", "0.0.0.0"):
        assert await status_of(port) == 200
        assert await status_of(port, Host=f"{socket.gethostname()}:{port}") == 200
        assert await status_of(port, Host="192.168.3.4:80") == 200
        assert await status_of(port, Host=f"evil.example:{port}") == 421
        assert await status_of(port, Host="[") == 421
        assert await status_of(port, Origin="http://evil.example") == 403
        assert await status_of(port, Origin=f"http://127.0.0.1:{port}") == 200


async def test_beyond_this_machine_a_caller_bears_the_servers_key(
    serve: Serve, unused_tcp_port: int
) -> None:
    port = unused_tcp_port
    server = serve(api_keys=("sesame",))
    async with running(server, port, "--host", "0.0.0.0", "--api-key", "sesame"):
        assert await status_of(port) == 401
        assert await status_of(port, Authorization="Bearer wrong") == 401
        assert await status_of(port, Authorization="Bearer sesame") == 200
