"""Three replicas on fake engines behind HAProxy: where turns go, and what they live through."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import signal
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgpack
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from shoal.loadtest.plan.recorded import read_recording, turn_text
from tests.clients_runs import run_client
from tests.cluster import Told, live_url, turn, turn_with_retries
from tests.fleet import SENTENCE, SLOTS, VOICES, Fleet, callers

pytest.importorskip("ray")

from shoal.deploy import cluster

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # Ray's driver lives in this process
]

logger = logging.getLogger("cluster")  # figures: -o log_cli=true -o log_cli_level=INFO
WARM_UP = 150
RECORDING = Path(__file__).parents[1] / "data" / "turns.jsonl"
REPLAY_SPEED = 3.0
PLAYED_S = (60.0, 190.0)
"""Of the recording. One replica speaks for a minute before it and for one behind it."""
REFUSED_S = (0.5, 1.0)
"""Since the turns began: when others are refused meanwhile."""
PAUSE_S = 0.015
"""Between two that are refused: some fifty a second come on top of two dozen who speak. As fast as
they can be made they would take these cores from the fakes, who make up for no lost time."""
ROUNDS, MOST_ROUNDS = 2, 8
UNNOTICED_S = 0.046
"""A frame of sound, the least that a listener's lead can be short of."""
WORDS = 16
CLIENTS_START_S = 8.0
CLIENTS_S = "30"
"""How long the agents' clients speak: they take some of it to come up."""


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:  # short: sockets lie in it
        fleet = Fleet(Path(folder))
        cluster.start(fleet.place, cpus=2)
        try:
            fleet.deploy()
            yield fleet
        finally:
            cluster.stop(fleet.place)


async def test_a_zipf_mix_finds_its_voices_where_they_are(fleet: Fleet) -> None:
    draw = random.Random(4)
    weights = [1 / (rank + 1) ** 1.1 for rank in range(VOICES)]
    plan = draw.choices([f"v{number}" for number in range(VOICES)], weights, k=450)
    seen: set[tuple[str, str]] = set()
    homes: dict[str, Counter[str]] = {voice: Counter() for voice in plan}
    asked = hits = 0
    gate = asyncio.Semaphore(10)

    async def one(voice: str) -> None:
        nonlocal asked, hits
        async with gate:
            told = await turn(live_url(fleet.http, voice), "Hello there.", voice)
            assert told.reason == "stop"
            asked += 1
            hits += asked > WARM_UP and (told.replica, voice) in seen
            seen.add((told.replica, voice))
            homes[voice][told.replica] += 1

    await asyncio.gather(*(one(voice) for voice in plan))
    rate = hits / (len(plan) - WARM_UP)
    copies = len(seen) / len(set(plan))
    at_home = sum(max(places.values()) for places in homes.values()) / len(plan)
    logger.info(f"affinity {rate:.3f}, {copies:.2f} copies of a voice, {at_home:.2f} at home")
    assert rate >= 0.95


async def test_a_hot_voice_spreads_and_unnamed_voices_are_dealt_out(fleet: Fleet) -> None:
    hot = await asyncio.gather(
        *(turn(live_url(fleet.http, "v1"), SENTENCE, "v1") for _ in range(18))
    )
    places = Counter(told.replica for told in hot)
    assert {told.reason for told in hot} == {"stop"}
    assert len(places) == 3 and max(places.values()) <= SLOTS
    unnamed = await asyncio.gather(*(turn(live_url(fleet.http), SENTENCE) for _ in range(12)))
    assert len({told.replica for told in unnamed}) == 3


async def test_overload_is_refused_at_once_and_live_turns_do_not_notice(fleet: Fleet) -> None:
    """Leads and silences are those of the time in which turns are refused; quiet and full rounds
    alternate and the best of each counts, since others use these cores as they like: the fewest
    rounds do that show it."""
    url = live_url(fleet.http)

    async def heard(full: bool) -> tuple[float, float, list[Told]]:
        """Of the turns' medians: the mean lead and the longest silence; then what was refused."""
        live = [asyncio.create_task(turn(url, SENTENCE)) for _ in range(3 * SLOTS)]
        await asyncio.sleep(REFUSED_S[0])
        refused: list[Told] = []
        until_s = time.monotonic() + REFUSED_S[1] - REFUSED_S[0]
        while full and time.monotonic() < until_s:
            refused.append(await turn(url, "No room."))
            await asyncio.sleep(PAUSE_S)
        ended = await asyncio.gather(*live)
        assert {told.reason for told in ended} == {"stop"}
        leads: list[float] = []
        silences: list[float] = []
        for told in ended:
            chunks = [one for one in told.leads if REFUSED_S[0] < one[0] < REFUSED_S[1]]
            leads.append(fmean(lead_s for _, lead_s in chunks))
            silences.append(max(after[0] - before[0] for before, after in pairwise(chunks)))
        return median(leads), median(silences), refused

    quiet: list[tuple[float, float]] = []
    full: list[tuple[float, float]] = []
    refused: list[Told] = []
    leads, silences = [0.0, -1.0], [0.0, 1.0]
    for rounds in range(1, MOST_ROUNDS + 1):
        quiet.append((await heard(full=False))[:2])
        *figures, no = await heard(full=True)
        full.append((figures[0], figures[1]))
        refused += no
        leads = [max(lead_s for lead_s, _ in some) for some in (quiet, full)]
        silences = [min(silence_s for _, silence_s in some) for some in (quiet, full)]
        unnoticed = leads[1] > leads[0] - UNNOTICED_S and silences[1] < silences[0] + UNNOTICED_S
        if unnoticed and rounds >= ROUNDS:
            break
    assert {told.status for told in refused} == {503}
    seconds = sorted(told.seconds for told in refused)
    p50_s, p95_s = seconds[len(seconds) // 2], seconds[len(seconds) * 95 // 100]
    logger.info(
        f"{len(refused)} refused in {p50_s * 1e3:.1f} ms, 95 % in {p95_s * 1e3:.1f} ms; "
        f"quiet and full: mean lead {leads[0] * 1e3:.0f} and {leads[1] * 1e3:.0f} ms, silence "
        f"{silences[0] * 1e3:.0f} and {silences[1] * 1e3:.0f} ms; rounds {quiet} {full}"
    )
    assert p50_s < 0.05
    assert leads[1] > leads[0] - UNNOTICED_S
    assert silences[1] < silences[0] + UNNOTICED_S


async def test_prometheus_is_told_of_every_replica(fleet: Fleet) -> None:
    def page(url: str) -> str:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read().decode()

    def turns_ended() -> tuple[int, float]:
        """Of how many replicas, and turns that any of them spoke to the end."""
        (group,) = json.loads(page(fleet.http + "/metrics/targets"))
        ports = [target.rpartition(":")[2] for target in group["targets"]]  # they listen locally
        pages = [page(f"http://127.0.0.1:{port}/metrics") for port in ports]
        counts = [re.findall(r'^shoal_turns_ended_total{end="stop"} (.*)$', p, re.M) for p in pages]
        return len(pages), sum(float(count) for found in counts for count in found)

    replicas, before = await asyncio.to_thread(turns_ended)
    await asyncio.gather(*(turn(live_url(fleet.http), "Hello.") for _ in range(6)))
    assert replicas == 3
    assert await asyncio.to_thread(turns_ended) == (3, before + 6)


async def test_a_killed_replica_takes_only_its_own_streams_along(fleet: Fleet) -> None:
    begun = asyncio.Semaphore(0)
    live = [
        asyncio.create_task(turn(live_url(fleet.http), 3 * SENTENCE, heard=begun.release))
        for _ in range(18)
    ]
    for _ in live:
        await asyncio.wait_for(begun.acquire(), 30)
    os.kill(fleet.replica_processes()[0], signal.SIGKILL)
    ended = await asyncio.gather(*live)
    lost = {told.replica for told in ended if told.reason != "stop"}
    assert len(lost) == 1
    others = [told for told in ended if told.replica not in lost]
    assert len(others) >= 6 and {told.reason for told in others} == {"stop"}
    again = await asyncio.gather(
        *(turn_with_retries(live_url(fleet.http), SENTENCE) for _ in range(8))
    )
    assert {told.reason for told, _ in again} == {"stop"}
    await asyncio.to_thread(fleet.wait_for, 3, 120)


@dataclass(frozen=True, slots=True)
class Update:
    """What clients were told who spoke while every replica was replaced by another one."""

    before: set[str]
    after: set[str]
    load: list[tuple[Told, int]]
    moved: int
    """Turns of the load that were over when the update was."""
    idle_code: int | None
    """With which a socket was closed on which nothing had been said."""
    long: list[tuple[str, int]]
    livekit: dict[str, Any]
    pipecat: dict[str, Any]


async def long_turn(http: str) -> tuple[str, int]:
    """How a turn ended and how much was heard of it, whose text comes over eight seconds."""
    async with connect(live_url(http), compression=None, max_size=None) as socket:
        request = {"text": "", "format": "pcm", "sample_rate": 24_000}
        await socket.send(msgpack.packb({"event": "start", "request": request}))

        async def speak() -> None:
            for _ in range(WORDS):  # longer than a leaving replica takes new turns
                await socket.send(msgpack.packb({"event": "text", "text": "Yes. "}))
                await asyncio.sleep(0.5)
            await socket.send(msgpack.packb({"event": "stop"}))

        speaking = asyncio.create_task(speak())
        audio, reason = 0, "lost"
        with suppress(ConnectionClosed):
            async for frame in socket:
                message = msgpack.unpackb(frame)
                audio += len(message.get("audio", b""))
                if message["event"] == "finish":
                    reason = message["reason"]
        with suppress(ConnectionClosed):
            await speaking
        return reason, audio


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def update(fleet: Fleet) -> Update:
    """One, under load, with the pools of others and with turns in their middle on each replica."""
    before = set(fleet.servers("UP"))
    clients = [
        asyncio.create_task(asyncio.to_thread(run_client, *arguments))
        for arguments in (
            ("livekit_pool", fleet.http, CLIENTS_S),
            ("pipecat_turns", "fish", fleet.http, CLIENTS_S),
        )
    ]
    await asyncio.sleep(CLIENTS_START_S)
    async with connect(live_url(fleet.http) + "?pool=1", compression=None) as idle:
        async with callers(fleet, 9) as load:
            await asyncio.sleep(1)
            long = [asyncio.create_task(long_turn(fleet.http)) for _ in range(6)]
            await asyncio.sleep(0.5)
            fleet.args["max_sockets"] = 900
            await asyncio.to_thread(fleet.deploy)
            moved = len(load)
            await asyncio.sleep(2)
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(idle.recv(), 30)
    received = closed.value.rcvd
    return Update(
        before,
        set(fleet.servers("UP")),
        load,
        moved,
        received.code if received is not None else None,
        await asyncio.gather(*long),
        *await asyncio.gather(*clients),
    )


async def test_a_rolling_update_under_load_loses_no_turn(update: Update) -> None:
    assert len(update.after) == 3 and not update.before & update.after
    tries = Counter(tries for _, tries in update.load)
    logger.info(f"{len(update.load)} turns, tries {dict(tries)}")
    assert [told for told, _ in update.load if told.reason != "stop"] == []
    assert len(update.load) > 30 and update.moved < len(update.load)
    assert {told.replica for told, _ in update.load[-3:]} <= update.after
    assert update.idle_code == 1001


async def test_turns_outlive_the_update_of_every_replica(update: Update) -> None:
    """Clients in the middle of a turn on each replica: what they say next is heard to the end."""
    assert len(update.long) == 6
    assert set(update.long) == {("stop", WORDS * 4 * 2400)}  # 4 frames a word


async def test_livekits_pool_lives_through_an_update(update: Update) -> None:
    told = update.livekit
    logger.info(f"LiveKit: {len(told['turns'])} turns, {told['handshakes']} handshakes")
    # It may take a socket from its pool as it is closed, says so, and takes another one.
    assert all(told["recovered"]) and len(told["turns"]) > 10
    assert min(told["turns"]) == pytest.approx(max(told["turns"]), abs=0.01)
    assert 2 <= told["handshakes"] < len(told["turns"]) / 2, "it keeps sockets and loses some"


async def test_pipecats_socket_lives_through_an_update(update: Update) -> None:
    told = update.pipecat
    logger.info(f"pipecat: {len(told['turns'])} turns, errors {told['errors']}")
    assert len(told["turns"]) >= 5 and min(told["turns"]) > 0
    assert min(told["turns"]) == pytest.approx(max(told["turns"]), abs=0.05)


async def test_recorded_turns_take_one_replica_to_three_and_back_and_none_is_cut(
    fleet: Fleet,
) -> None:
    rules = {"start_s": 2.0, "hold_s": 3.0, "down_every_s": 1.0, "spare": 0}
    await asyncio.to_thread(fleet.scale_by_traffic, 3, **rules)
    await asyncio.to_thread(fleet.wait_for, 1, 120)
    draw = random.Random(1)
    turns = [turn for turn in read_recording(RECORDING) if PLAYED_S[0] < turn.at_s < PLAYED_S[1]]
    begun_s = time.monotonic()
    sizes: list[tuple[float, int]] = []
    over = asyncio.Event()

    async def watch() -> None:
        while not over.is_set():
            there = len(await asyncio.to_thread(fleet.servers, "UP"))
            if not sizes or there != sizes[-1][1]:
                sizes.append((time.monotonic() - begun_s, there))
            await asyncio.sleep(0.2)

    async def one(at_s: float, text: str) -> tuple[Told, int]:
        await asyncio.sleep(at_s - (time.monotonic() - begun_s))
        return await turn_with_retries(live_url(fleet.http), text)

    watching = asyncio.create_task(watch())
    ended = await asyncio.gather(
        *(one((turn.at_s - PLAYED_S[0]) / REPLAY_SPEED, turn_text(turn, draw)) for turn in turns)
    )
    await asyncio.to_thread(fleet.wait_for, 1, 120)
    over.set()
    await watching
    told = "; ".join(f"{count} from {at_s:.1f} s" for at_s, count in sizes)
    tries = Counter(tries for _, tries in ended)
    logger.info(f"{len(turns)} turns at {REPLAY_SPEED:g}x speed; replicas: {told}; tries {tries}")
    counts = [count for _, count in sizes]
    assert counts[0] == 1 and max(counts) == 3 and counts[-1] == 1
    assert [told for told, _ in ended if told.reason != "stop"] == []
