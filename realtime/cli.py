"""The ``shoal`` command: what a user types, and one clear line when it cannot be done.

Nothing heavy is imported before a command needs it, so ``shoal --version`` is quick and knows no
torch. Exit codes: 0 done, 1 it failed, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import errno
import gc
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import BinaryIO

from shoal.engine.api import Engine, Reference
from shoal.engine.checkpoint import CheckpointError
from shoal.engine.config import BUILTIN_VOICE
from shoal.loadtest.command import run

from .arguments import build_parser
from .complaints import CommandError, UsageError
from .config import ConfigError, server_config, setting
from .engine_flags import load_engine, prepare_voice, refuse_engine_flags, voices_dir
from .installing import missing_module
from .progress import Progress

STDIN_BLOCK_BYTES = 4096


def main(argv: Sequence[str] | None = None) -> int:
    flags = build_parser().parse_args(argv)
    try:
        return COMMANDS[flags.command](flags)
    except CommandError as refusal:
        _complain(str(refusal))
        return 1
    except UsageError as mistake:
        _complain(str(mistake))
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output went away
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _complain(message: str) -> None:
    print(f"shoal: {message}", file=sys.stderr)


def _serve(flags: argparse.Namespace) -> int:
    from .server import serve
    from .trace import OtelTraces, TracingUnavailable

    try:
        config = server_config(
            host=flags.host,
            port=flags.port,
            api_keys=flags.api_key and tuple(flags.api_key),
            allow_origins=flags.allow_origin and tuple(flags.allow_origin),
            voices_dir=voices_dir(),
            log_level=flags.log_level,
            log_json=flags.log_json,
            traces=flags.traces,
            record_turns=flags.record_turns,
        )
        traces = OtelTraces() if config.traces else None
    except (ConfigError, TracingUnavailable) as error:
        raise CommandError(str(error)) from error
    _check_port(config.host, config.port)
    if config.record_turns is not None:
        try:
            config.record_turns.open("ab").close()
        except OSError as error:
            raise CommandError(f"{config.record_turns}: {error.strerror}") from error
    progress = Progress(sys.stderr)
    engine: Engine
    if flags.engine == "fake":
        from shoal.engine.fake import FakeEngine
        from shoal.engine.voices import VoiceStore

        engine = FakeEngine(slots=flags.slots or 4, store=VoiceStore(voices_dir()))
    else:
        engine = load_engine(flags, progress)

    def ready(address: str) -> None:
        progress.done()
        info = engine.info
        note = f", {info.note}" if info.note else ""
        print(f"shoal speaks at {address} ({info.model} on {info.device}{note})")
        command = "shoal" if shutil.which("shoal") else sys.argv[0]
        key = " --api-key KEY" if config.api_keys else ""
        print(f'try: {command} say "Hello from shoal."{key} --url {address} -o hello.wav')
        sys.stdout.flush()

    try:
        return serve(config, engine, ready, traces)
    finally:
        if traces is not None:
            traces.close()
        # Serving froze what was built; what is still frozen at exit, libraries report as leaked.
        gc.unfreeze()


def _check_port(host: str, port: int) -> None:
    """Find out before the model is loaded, and in words."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        hint = ": choose another one with --port" if error.errno == errno.EADDRINUSE else ""
        reason = error.strerror or str(error)
        raise CommandError(f"cannot listen on {host}:{port} ({reason}){hint}") from error


def _say(flags: argparse.Namespace) -> int:
    from .playback import NoSoundOutput, Sink, check_sink, open_sink
    from .say import SayError, say_local, say_remote

    refuse_engine_flags(flags)
    if not flags.text.strip():
        raise UsageError("there is nothing to say")

    def sink(rate: int) -> Sink:
        return open_sink(flags.out, rate)

    pieces = _stdin_pieces() if flags.text == "-" else iter([flags.text])
    try:
        check_sink(flags.out)
        if flags.local:
            progress = Progress(sys.stderr)
            engine = load_engine(flags, progress)
            spoken = say_local(
                engine, pieces, sink, voice=flags.voice, seed=flags.seed, on_ready=progress.done
            )
        else:
            spoken = say_remote(
                flags.url,
                pieces,
                sink,
                voice=flags.voice,
                api_key=flags.api_key or setting("api_key"),
                seed=flags.seed,
            )
    except (SayError, NoSoundOutput) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{error.filename or flags.out}: {error.strerror or error}") from error
    figures = f"TTFA {spoken.ttfa_s * 1000:.0f} ms, {spoken.audio_s:.2f} s of audio"
    if flags.out is not None:  # a sound card takes as long as the audio is
        figures += f" in {spoken.wall_s:.2f} s: real-time factor {spoken.rtf:.2f}, {flags.out}"
    print(figures, file=sys.stderr)
    return 0


def _batch(flags: argparse.Namespace) -> int:
    from .batch import FAILED, run_batch
    from .batch_folder import Folder, FolderBusy
    from .batch_speakers import LocalSpeaker, RemoteSpeaker
    from .say import SayError

    refuse_engine_flags(flags)
    progress = Progress(sys.stderr)
    with contextlib.ExitStack() as closing:
        try:
            folder = closing.enter_context(Folder(flags.out))
            if flags.local:
                speaker = closing.enter_context(LocalSpeaker(load_engine(flags, progress)))
            else:
                speaker = RemoteSpeaker(flags.url, flags.api_key or setting("api_key"))
                speaker.check()
            tally = run_batch(
                flags.file,
                folder,
                speaker,
                workers=flags.jobs,
                report=lambda tally: progress(str(tally)),
            )
        except (FolderBusy, SayError) as refusal:
            raise CommandError(str(refusal)) from refusal
        except OSError as error:
            raise CommandError(f"{error.filename or flags.out}: {error.strerror}") from error
    progress.done()
    hint = f"; why: {flags.out / FAILED}" if tally.failed else ""
    print(f"{tally}{hint}")
    return 1 if tally.failed else 0


def _stdin_pieces() -> Iterator[str]:
    """Standard input as it arrives, in pieces that end between characters."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    source: BinaryIO = sys.stdin.buffer
    while block := os.read(source.fileno(), STDIN_BLOCK_BYTES):
        if piece := decoder.decode(block):
            yield piece
    if rest := decoder.decode(b"", True):
        yield rest


def _voice_add(flags: argparse.Namespace) -> int:
    from shoal.engine.voices import VoiceError, VoiceStore

    store = VoiceStore(voices_dir())
    try:
        reference = Reference(flags.file.read_bytes(), flags.text)
        info = store.add(flags.name, [reference], replace=flags.replace)
    except OSError as error:
        raise CommandError(f"{error.filename or flags.file}: {error.strerror}") from error
    except VoiceError as error:
        raise CommandError(str(error)) from error
    progress = Progress(sys.stderr)
    try:
        prepare_voice(flags, flags.name, progress)
    except (CheckpointError, VoiceError) as error:
        # It is kept: any model that can be loaded makes the codes when it first needs them.
        raise CommandError(f"{info.voice_id} is kept, but not prepared: {error}") from error
    finally:
        progress.done()
    print(f"{info.voice_id}: {info.seconds:.1f} s kept in {voices_dir()}")
    return 0


def _voice_list(_flags: argparse.Namespace) -> int:
    from shoal.engine.voices import VoiceStore

    for info in VoiceStore(voices_dir()).list():
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created_at))
        print(f"{info.voice_id}\t{info.seconds:.1f} s\t{when}")
    return 0


def _voice_remove(flags: argparse.Namespace) -> int:
    from shoal.engine.voices import VoiceError, VoiceStore

    try:
        VoiceStore(voices_dir()).remove(flags.name)
    except VoiceError as error:
        raise CommandError(str(error)) from error
    return 0


def _mcp(flags: argparse.Namespace) -> int:
    try:
        from .agent import Place, local_tools, serve_http
    except ModuleNotFoundError as missing:
        raise CommandError(missing_module(missing, "shoal[mcp]")) from missing
    place = Place(flags.url.rstrip("/"), flags.api_key or setting("api_key"))
    if flags.http:
        serve_http(place, flags.host, flags.port)
    else:
        local_tools(place).run("stdio")
    return 0


def _load_test(flags: argparse.Namespace) -> int:
    try:
        return run(flags)
    except ModuleNotFoundError as missing:
        raise CommandError(missing_module(missing, "shoal")) from missing


def _cluster(flags: argparse.Namespace) -> int:
    # A program of its own: nothing here imports what runs many of us.
    command = [sys.executable, "-P", "-m", "shoal.deploy", flags.action, *flags.rest]
    return subprocess.run(command).returncode


def _doctor(flags: argparse.Namespace) -> int:
    from .doctor import findings

    found = findings(flags.model, BUILTIN_VOICE)
    broken = False
    for finding in found:
        print(finding.line(), flush=True)
        broken |= finding.required and not finding.ok
    return 1 if broken else 0


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = MappingProxyType(
    {
        "serve": _serve,
        "say": _say,
        "batch": _batch,
        "voice_add": _voice_add,
        "voice_list": _voice_list,
        "voice_remove": _voice_remove,
        "mcp": _mcp,
        "load_test": _load_test,
        "cluster": _cluster,
        "doctor": _doctor,
    }
)
