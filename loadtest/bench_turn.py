"""What one machine does with real turns: time to first audio, real-time factor, six at once.

Talks to a running server (``--url``) or starts one on the built-in voice. Three parts, in order:

- *single*: one user, one sentence at a time, the voice prefilled before the text is sent;
- *together*: as many users as ``--streams``, all at once, as fast as the server can;
- *realtime*: as many users, each listening in real time; a player with ``--prebuffer-ms`` is
  simulated over what arrived, and every hole in what it heard is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.loadtest.measure.playout import Playout, play
from shoal.loadtest.plan.voices import Voice
from shoal.loadtest.targets.fish import FishConnection, Shoal
from shoal.loadtest.targets.target import TurnOver

from .one_turn import Take, take_turn, target
from .own_server import NoServer, own_server

SENTENCES = (
    "The birch canoe slid on the smooth planks beside the river.",
    "Our next meeting is scheduled for Wednesday, the third of March.",
    "She opened the window and listened to the rain falling on the roof.",
    "There are seven bridges in the old part of the city.",
    "Music helps me concentrate when I have a lot of work to do.",
    "The museum is closed on Mondays, but the library stays open until six.",
)
ROUNDS = 3
"""How often all streams speak at once: one round is over in a second."""
START_SPREAD_S = 1.0
"""Realtime users begin one after another over this time, as people do."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is reported. Times in seconds; ``rtf`` is work over audio, so less is faster."""

    machine: str
    turns: int
    ttfa_p50_s: float
    ttfa_max_s: float
    ttfa_unflushed_p50_s: float
    single_rtf: float
    single_wall_p50_s: float
    streams: int
    together_speed: float
    single_speed: float
    realtime_turns: int
    realtime_audio_s: float
    stalls: int
    worst_stall_s: float
    realtime_ttfa_p50_s: float
    realtime_ttfa_max_s: float
    min_lead_s: float

    @property
    def batch_gain(self) -> float:
        """Audio a second with all streams at once, over that of one stream alone."""
        return self.together_speed / self.single_speed


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do. The texts and the seed are fixed, so every run speaks the same."""

    turns: int
    streams: int
    realtime_turns: int
    prebuffer_s: float


async def bench(url: str, api_key: str, plan: Plan) -> Figures:
    """Run all three parts against ``url``.

    :raises TurnOver: a turn was refused or failed; a bench with holes would not be one.
    """
    server = target(url, api_key, seed=1)
    connection = await server.connect(Voice())
    await take_turn(connection, SENTENCES[0])  # the first turn on a socket is not the usual one
    single = [await take_turn(connection, text) for text in _texts(plan.turns)]
    unflushed = [
        await take_turn(connection, f"{text} ", end_at_once=False) for text in _texts(plan.turns)
    ]
    await connection.close()
    together = [await _together(server, plan.streams) for _ in range(ROUNDS)]
    users = [_realtime_user(server, number, plan) for number in range(plan.streams)]
    realtime = [take for takes in await asyncio.gather(*users) for take in takes]
    return figures(plan, single, unflushed, together, realtime)


def figures(
    plan: Plan,
    single: Sequence[Take],
    unflushed: Sequence[Take],
    together: Sequence[Sequence[Take]],
    realtime: Sequence[Take],
) -> Figures:
    """Pure: from takes to figures."""
    played = [player for take in realtime if (player := _played(take, plan.prebuffer_s))]
    stalls = [stall.length_s for player in played for stall in player.stalls]
    leads = [player.min_lead_s for player in played if player.min_lead_s is not None]
    together_s = sum(max(t.ended_s for t in r) - min(t.sent_s for t in r) for r in together)
    return Figures(
        machine=machine(),
        turns=len(single),
        ttfa_p50_s=statistics.median(t.ttfa_s for t in single),
        ttfa_max_s=max(t.ttfa_s for t in single),
        ttfa_unflushed_p50_s=statistics.median(t.ttfa_s for t in unflushed),
        single_rtf=sum(t.wall_s for t in single) / sum(t.audio_s for t in single),
        single_wall_p50_s=statistics.median(t.wall_s for t in single),
        streams=plan.streams,
        together_speed=sum(t.audio_s for r in together for t in r) / together_s,
        single_speed=sum(t.audio_s for t in single) / sum(t.wall_s for t in single),
        realtime_turns=len(realtime),
        realtime_audio_s=sum(t.audio_s for t in realtime),
        stalls=len(stalls),
        worst_stall_s=max(stalls, default=0.0),
        realtime_ttfa_p50_s=statistics.median(t.ttfa_s for t in realtime),
        realtime_ttfa_max_s=max(t.ttfa_s for t in realtime),
        min_lead_s=min(leads, default=0.0),
    )


def _texts(count: int) -> list[str]:
    return [SENTENCES[number % len(SENTENCES)] for number in range(count)]


def _played(take: Take, prebuffer_s: float) -> Playout | None:
    return play(take.arrivals, take.rate, prebuffer_s, take.ended_s)


async def _together(server: Shoal, streams: int) -> list[Take]:
    connections: list[FishConnection] = [await server.connect(Voice()) for _ in range(streams)]
    try:
        return await asyncio.gather(
            *(
                take_turn(connection, text)
                for connection, text in zip(connections, _texts(streams), strict=True)
            )
        )
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


async def _realtime_user(server: Shoal, number: int, plan: Plan) -> list[Take]:
    """Turn after turn, each of three sentences, the next one when the last was heard."""
    await asyncio.sleep(START_SPREAD_S * number / plan.streams)
    takes: list[Take] = []
    for turn in range(plan.realtime_turns):
        first = number + turn
        text = " ".join(SENTENCES[(first + k) % len(SENTENCES)] for k in range(3))
        # Its own socket: listening takes longer than a server keeps an idle one.
        connection = await server.connect(Voice())
        try:
            takes.append(await take_turn(connection, text))
        finally:
            await connection.close()
        player = _played(takes[-1], plan.prebuffer_s)
        if player is not None and turn + 1 < plan.realtime_turns:
            await asyncio.sleep(max(0.0, player.end_s - time.monotonic()))
    return takes


def machine() -> str:
    """Processor, cores that this process may use, and Python, in one line."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
        cores = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        cores = os.cpu_count() or 0
    return f"{model}, {cores} cores, Python {platform.python_version()}"


def table(found: Figures, prebuffer_s: float) -> str:
    def ms(seconds: float) -> str:
        return f"{seconds * 1000:.0f} ms"

    rows = (
        ("single: first audio, p50 / max", f"{ms(found.ttfa_p50_s)} / {ms(found.ttfa_max_s)}"),
        ("single: first audio without a flush, p50", ms(found.ttfa_unflushed_p50_s)),
        ("single: real-time factor", f"{found.single_rtf:.2f}"),
        (f"{found.streams} at once: audio s per s", f"{found.together_speed:.1f}"),
        (f"{found.streams} at once, over one alone", f"{found.batch_gain:.1f} x"),
        (
            f"{found.streams} realtime: stalls at {ms(prebuffer_s)}",
            f"{found.stalls} in {found.realtime_audio_s:.0f} s of audio, "
            f"worst {ms(found.worst_stall_s)}",
        ),
        (
            f"{found.streams} realtime: first audio, p50 / max",
            f"{ms(found.realtime_ttfa_p50_s)} / {ms(found.realtime_ttfa_max_s)}",
        ),
        (f"{found.streams} realtime: least lead", ms(found.min_lead_s)),
    )
    width = max(len(name) for name, _ in rows)
    return "\n".join((found.machine, *(f"  {name:<{width}}  {value}" for name, value in rows)))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="a running server; otherwise one is started")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--turns", type=int, default=20, help="of the single user")
    parser.add_argument("--streams", type=int, default=6)
    parser.add_argument("--realtime-turns", type=int, default=3, help="of each realtime user")
    parser.add_argument("--prebuffer-ms", type=float, default=200.0)
    parser.add_argument("--json", type=Path, help="write the figures there too; - prints them")
    flags = parser.parse_args(argv)
    plan = Plan(flags.turns, flags.streams, flags.realtime_turns, flags.prebuffer_ms / 1000)
    with ExitStack() as stack:
        try:
            url = flags.url or stack.enter_context(own_server())
            found = asyncio.run(bench(url, flags.api_key, plan))
        except (NoServer, TurnOver) as failure:
            print(f"bench: {failure}", file=sys.stderr)
            return 1
    print(table(found, plan.prebuffer_s))
    if flags.json is not None:
        text = json.dumps({**asdict(found), "batch_gain": found.batch_gain}, indent=1)
        if str(flags.json) == "-":
            print(text)
        else:
            flags.json.write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
