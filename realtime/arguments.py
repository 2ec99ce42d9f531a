"""The command line of ``shoal``. Only declares; imports nothing heavy."""

from __future__ import annotations

import argparse
import re
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.loadtest.command import add_arguments

from .config import DEFAULT_PORT

MCP_PORT = 8765


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shoal", description="A realtime voice server: text in over a WebSocket, speech out."
    )
    parser.add_argument("--version", action="version", version=f"shoal {metadata.version('shoal')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_say(commands)
    _add_batch(commands)
    _add_voice(commands)
    _add_mcp(commands)
    _add_load(commands)
    _add_cluster(commands)
    _add_doctor(commands)
    return parser


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # pyright: ignore[reportPrivateUsage]


def _engine_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="DIR", help="a checkpoint folder; without it, the built-in voice"
    )
    parser.add_argument(
        "--device", type=_device, metavar="NAME", help="cpu or cuda; without it, what is there"
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "fp32", "bf16", "fp8", "mxfp8"),
        help="of the weights; mxfp8 is emulated before Blackwell",
    )
    parser.add_argument(
        "--kv-dtype",
        choices=("auto", "bf16", "fp8"),
        help="of keys and values on a GPU; fp8 keeps twice as many in the same memory",
    )


def _add_serve(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="run the server")
    _engine_flags(serve)
    serve.add_argument("--engine", choices=("real", "fake"), default="real", help="fake: tones")
    serve.add_argument("--host", help="127.0.0.1; 0.0.0.0 for every interface")
    serve.add_argument("--port", type=_port, help=f"{DEFAULT_PORT}")
    serve.add_argument("--slots", type=_positive, metavar="N", help="turns that speak at once")
    serve.add_argument(
        "--api-key", action="append", metavar="KEY", help="ask clients for it; repeat for several"
    )
    serve.add_argument("--allow-origin", action="append", metavar="URL", help="a web page's origin")
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    serve.add_argument("--log-json", action="store_true", default=None)
    serve.add_argument(
        "--traces", action="store_true", default=None, help="export turns by OpenTelemetry"
    )
    serve.add_argument(
        "--record-turns",
        type=Path,
        metavar="FILE",
        help="add a line for each turn, for `shoal load run --replay`: its times, never its text",
    )
    serve.set_defaults(command="serve")


def _add_say(commands: Commands) -> None:
    say = commands.add_parser("say", help="speak a text")
    say.add_argument(
        "text", metavar="TEXT", help="what to say; - speaks standard input as it comes"
    )
    say.add_argument("-o", "--out", type=Path, metavar="FILE", help="write a WAV file, do not play")
    where = say.add_mutually_exclusive_group()
    where.add_argument("--url", default=f"http://127.0.0.1:{DEFAULT_PORT}", help="the server")
    where.add_argument("--local", action="store_true", help="no server: load the model here")
    say.add_argument("--voice", metavar="ID")
    say.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same speech")
    say.add_argument("--api-key", metavar="KEY")
    _engine_flags(say)
    say.set_defaults(command="say")


def _add_batch(commands: Commands) -> None:
    batch = commands.add_parser(
        "batch",
        help="speak many texts to files",
        description="Speak the lines of a file, {id, text, voice?, seed?, format?} each, to files "
        "named by their ids, behind all live turns. Run it again to go on where it stopped.",
    )
    batch.add_argument("file", type=Path, metavar="FILE.jsonl")
    batch.add_argument("-o", "--out", type=Path, metavar="DIR", required=True)
    where = batch.add_mutually_exclusive_group()
    where.add_argument("--url", default=f"http://127.0.0.1:{DEFAULT_PORT}", help="the server")
    where.add_argument("--local", action="store_true", help="no server: load the model here")
    batch.add_argument("--jobs", type=_positive, default=4, metavar="N", help="spoken at once; 4")
    batch.add_argument("--api-key", metavar="KEY")
    _engine_flags(batch)
    batch.set_defaults(command="batch")


def _add_voice(commands: Commands) -> None:
    voice = commands.add_parser("voice", help="keep voices to speak with")
    actions = voice.add_subparsers(required=True, metavar="ACTION")
    add = actions.add_parser("add", help="keep a voice from a recording of 3 to 60 seconds")
    add.add_argument("name", metavar="NAME")
    add.add_argument("file", type=Path, metavar="FILE", help="wav, mp3, flac or ogg")
    add.add_argument("--text", required=True, help="what is said in the recording, word for word")
    add.add_argument("--replace", action="store_true", help="take the place of a voice so called")
    _engine_flags(add)
    add.set_defaults(command="voice_add")
    listing = actions.add_parser("list", help="list the voices")
    listing.set_defaults(command="voice_list")
    remove = actions.add_parser("remove", help="forget a voice")
    remove.add_argument("name", metavar="NAME")
    remove.set_defaults(command="voice_remove")


def _add_mcp(commands: Commands) -> None:
    mcp = commands.add_parser("mcp", help="give an agent speech: a Model Context Protocol server")
    mcp.add_argument("--url", default=f"http://127.0.0.1:{DEFAULT_PORT}", help="the shoal server")
    mcp.add_argument(
        "--api-key",
        metavar="KEY",
        help="the server's; beyond 127.0.0.1 a caller over HTTP must bear it, too",
    )
    mcp.add_argument("--http", action="store_true", help="streamable HTTP instead of stdio")
    mcp.add_argument("--host", default="127.0.0.1", help="for --http; 127.0.0.1")
    mcp.add_argument("--port", type=_port, default=MCP_PORT, help=f"for --http; {MCP_PORT}")
    mcp.set_defaults(command="mcp")


def _add_load(commands: Commands) -> None:
    load = commands.add_parser("load", help="measure a server under load")
    add_arguments(load)
    load.set_defaults(command="load_test")


def _add_cluster(commands: Commands) -> None:
    cluster = commands.add_parser("cluster", help="run several servers behind one address")
    cluster.add_argument("action", choices=("up", "status", "down", "env", "backfill"))
    cluster.add_argument("rest", nargs=argparse.REMAINDER, help="shoal cluster up -h lists them")
    cluster.set_defaults(command="cluster")


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser("doctor", help="say what this machine has and lacks")
    doctor.add_argument("--model", type=Path, metavar="DIR")
    doctor.set_defaults(command="doctor")


def _port(text: str) -> int:
    if not text.isdigit() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port")
    return int(text)


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text} is neither cpu nor cuda")
    return text


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)
