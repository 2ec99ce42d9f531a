"""How many realtime streams one process carries when the device costs nothing.

The real server, engine and sockets, with a runner that only takes the time that a GPU would. What
is left is Python: the event loop, the decode, codec and prefill threads, and their one lock.
Reported for each number of streams: frames a second, time to first audio, the loop's lag, and the
processor time that each thread spends on a second of audio. Processor times hold on a machine that
has other work, where times by the clock do not.

    python -P -m shoal.loadtest.bench_gateway --streams 16,64,128,256 [--closed] [--rate 24000]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from .bench_gateway_client import Crowd, Heard, speak_all
from .bench_turn import machine
from .own_server import free_port

READY_S = 60.0
RATE = 44_100
FRAME_S = 2048 / RATE
Mark = tuple[float, dict[str, float], list[float], list[float], int, int]
"""See ``bench_gateway_server``: when, thread times, lags, garbage collections, frames, steps."""


def _serve(
    port: int,
    slots: int,
    frames: int,
    prefill: tuple[int, float],
    switch_interval_s: float | None,
    questions: Connection,
) -> None:
    """The body of the server's process, which alone is to load the engine."""
    from .bench_gateway_server import run

    sys.exit(run(port, slots, frames, prefill, switch_interval_s, questions))


def measure(streams: int, flags: argparse.Namespace) -> dict[str, object]:
    """One level, on a server of its own."""
    spawn = multiprocessing.get_context("spawn")
    questions, theirs = spawn.Pipe()
    port = free_port()
    server = spawn.Process(
        target=_serve,
        args=(
            port,
            flags.slots,
            flags.frames,
            (flags.prefill_tiles, flags.prefill_tile),
            flags.switch_interval,
            theirs,
        ),
        daemon=True,
    )
    server.start()
    workers = min(flags.clients, streams)
    try:
        if not questions.poll(READY_S):
            raise TimeoutError("the server did not come up")
        questions.recv()
        with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
            for started in [pool.submit(time.sleep, 0.3) for _ in range(workers)]:
                started.result()
            begin_s = time.monotonic() + 0.2
            from_s = begin_s + flags.spread + flags.warmup
            stop_s = from_s + flags.window
            crowds = [
                Crowd(
                    port=port,
                    users=streams // workers + (number < streams % workers),
                    realtime=not flags.closed,
                    think_s=flags.think,
                    rate=flags.rate,
                    format=flags.format,
                    begin_s=begin_s,
                    spread_s=flags.spread,
                    stop_s=stop_s,
                    seed=number,
                )
                for number in range(workers)
            ]
            heard = [pool.submit(speak_all, crowd) for crowd in crowds]
            marks: list[Mark] = []
            for when_s in (from_s, stop_s):
                time.sleep(max(0.0, when_s - time.monotonic()))
                questions.send(True)
                marks.append(questions.recv())
            results = [future.result() for future in heard]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            parts = _parts(page.read().decode())
    finally:
        server.kill()
        server.join()
    return {**_figures(streams, marks[0], marks[1], results), "ttfa_parts_ms": parts}


def _parts(page: str) -> dict[str, float]:
    """The mean of each part of a turn's way to its first audio, by the server's own count."""
    found = dict(re.findall(r"^shoal_ttfa_part_seconds_(\S+) (\S+)$", page, re.MULTILINE))
    return {
        part: round(1e3 * float(found[f'sum{{part="{part}"}}']) / max(1.0, float(count)), 2)
        for key, count in found.items()
        if key.startswith("count")
        for part in re.findall(r'"(\w+)"', key)
    }


def _figures(
    streams: int,
    first: Mark,
    last: Mark,
    heard: Sequence[Heard],
) -> dict[str, object]:
    from_s, spent_before, _, _, frames_before, steps_before = first
    to_s, spent_after, lags, pauses, frames_after, steps_after = last
    length_s = to_s - from_s
    frames = frames_after - frames_before
    audio_s = max(frames, 1) * FRAME_S
    ttfa = [s for h in heard for at_s, s in h.ttfa_s if from_s <= at_s < to_s]
    late = [s for h in heard for at_s, s in h.late_s if from_s <= at_s < to_s]
    sizes = [size for h in heard for at_s, size in h.messages if from_s <= at_s < to_s]
    cpu = {
        name: spent_after[name] - spent_before.get(name, 0.0)
        for name in spent_after
        if name != "probe"
    }
    return {
        "streams": streams,
        "turns": len(ttfa),
        "failed": sum(h.failed for h in heard),
        "frames_per_s": round(frames / length_s),
        "steps_per_s": round((steps_after - steps_before) / length_s),
        "ttfa_ms": [_ms(ttfa, share) for share in (0.5, 0.95, 0.99)],
        "stalled_share": round(sum(s > 0.1 for s in late) / max(1, len(late)), 4),
        "lag_ms": [_ms(lags, share) for share in (0.5, 0.99)],
        "collections": len(pauses),
        "collection_ms_most": _ms(pauses, 1.0),
        "messages_per_s": round(len(sizes) / length_s),
        "mbytes_per_s": round(sum(sizes) / length_s / 1e6, 2),
        "cpu_ms_per_audio_s": {
            name: round(1e3 * spent / audio_s, 3)
            for name, spent in sorted(cpu.items(), key=lambda item: -item[1])
            if spent > 0.0005 * length_s
        },
        "cpu_cores": round(sum(cpu.values()) / length_s, 3),
        "cpu_ms_per_audio_s_in_all": round(1e3 * sum(cpu.values()) / audio_s, 3),
    }


def _ms(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds)
    return (
        round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        if ordered
        else -1.0
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="16,64,128,256")
    parser.add_argument("--closed", action="store_true", help="speak again at once, not when heard")
    parser.add_argument("--think", type=float, default=0.0, help="s between turns of a listener")
    parser.add_argument("--rate", type=int, default=RATE, help="Hz that clients ask for")
    parser.add_argument("--format", default="pcm")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--frames", type=int, default=110, help="of an utterance, about")
    parser.add_argument(
        "--prefill-tiles", type=int, default=16, help="of 32 columns in a pass; 1: one by one"
    )
    parser.add_argument(
        "--prefill-tile", type=float, default=0.00018, help="s a further tile of a pass takes"
    )
    parser.add_argument("--clients", type=int, default=2, help="processes of clients")
    parser.add_argument("--spread", type=float, default=5.0, help="s over which users begin")
    parser.add_argument("--warmup", type=float, default=2.0)
    parser.add_argument("--window", type=float, default=10.0)
    parser.add_argument("--switch-interval", type=float, help="s; the server's own if not given")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args(argv)
    print(machine())
    found: list[dict[str, object]] = []
    for streams in flags.streams.split(","):
        found.append(measure(int(streams), flags))
        print(json.dumps(found[-1]), flush=True)
    if flags.json is not None:
        flags.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if any(figures["failed"] for figures in found) else 0


if __name__ == "__main__":
    sys.exit(main())
