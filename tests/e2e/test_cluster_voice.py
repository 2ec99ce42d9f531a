"""Three replicas of the built-in voice, as ``shoal cluster up`` starts them: what is heard of them.

What a turn has to sound like comes from one server without a cluster: same text, same seed, and all
but the rounding is the same. Figures: ``-o log_cli=true -o log_cli_level=INFO``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import tempfile
import threading
import time
import wave
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fishaudio
import httpx
import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from shoal.engine.api import Reference
from shoal.engine.config import EngineConfig
from shoal.engine.service import SpeechEngine
from tests.cluster import live_url
from tests.e2e.conftest import Heard, Serve, Server, live

pytest.importorskip("ray")

from shoal.deploy import cluster
from tests.fleet import Contended, Laptop, until

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # Ray's driver lives in this process
]

logger = logging.getLogger("cluster")
RECORDINGS = Path(__file__).parents[1] / "data" / "voices"
CLONED = ("george", "michael")
SENTENCE = "The museum is closed on Mondays, but the library stays open until six."
STORY = (
    "The harbour was quiet when the first boats came in. People stood on the wall and counted "
    "them, one by one. Nobody had slept much, because the wind had been loud all night."
)
RATE = 24_000
TRIES = 5
LINES = 6
Samples = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A turn. ``replica`` is "" where the server is no cluster."""

    replica: str
    heard: Heard

    @property
    def samples(self) -> Samples:
        return np.frombuffer(self.heard.audio, "<i2").astype(np.int32)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Laptop]:
    voices = {
        name: Reference(
            (RECORDINGS / f"{name}.ogg").read_bytes(), (RECORDINGS / f"{name}.txt").read_text()
        )
        for name in CLONED
    }
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:  # short: sockets lie in it
        fleet = Laptop(Path(folder), voices)
        cluster.start(fleet.place, cpus=2)
        try:
            fleet.deploy()
            yield fleet
        finally:
            fleet.kill()


@pytest.fixture(scope="module")
def single(fleet: Laptop, make_server: Serve) -> Iterator[Server]:
    """One server with the voices of the cluster."""
    config = EngineConfig(device="cpu", slots=LINES, voices_dir=fleet.store.root)
    engine = SpeechEngine(config, store=fleet.store)
    server = make_server(engine, voices_dir=fleet.store.root)
    yield server
    server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stories(single: Server) -> list[Samples]:
    """``STORY`` as one server speaks it, with ``LINES`` seeds from 0 on."""
    spoken = await asyncio.gather(*(speak(single.http, STORY, seed) for seed in range(LINES)))
    assert {one.heard.reason for one in spoken} == {"stop"}
    return [one.samples for one in spoken]


async def speak(
    http: str, text: str, seed: int, voice: str = "", begun: asyncio.Event | None = None
) -> Spoken:
    """One turn; ``begun`` is set with the first audio of it."""
    server: Any = SimpleNamespace(live=live_url(http))
    named = {"reference_id": voice} if voice else {}
    async with live(server, f"?reference_id={voice}" if voice else "") as socket:
        assert socket.socket.response is not None
        replica = socket.socket.response.headers.get("x-shoal-replica", "")
        await socket.say(text, seed=seed, **named)
        first = await socket.hear(until="audio")
        if begun is not None:
            begun.set()
        rest = await socket.hear() if first.close_code is None else first
        return Spoken(replica, Heard(first.events + rest.events, rest.close_code))


async def speak_with_retries(http: str, text: str, seed: int) -> tuple[Spoken, int]:
    """As clients do, and how many tries it took."""
    for attempt in range(1, TRIES):
        try:
            spoken = await speak(http, text, seed)
            if spoken.heard.reason == "stop":
                return spoken, attempt
        except (OSError, EOFError, ConnectionClosed, InvalidStatus):
            pass
        await asyncio.sleep(0.1 * attempt)
    return await speak(http, text, seed), TRIES


def check_alike(spoken: Samples, expected: Samples) -> None:
    """All but the rounding is the same, and it is speech."""
    assert len(spoken) == len(expected)
    assert np.abs(spoken - expected).max() <= 2
    assert 0.3 < (np.abs(spoken) > 300).mean() < 0.99, "neither silence nor noise"
    assert np.abs(spoken).max() > 3000


async def test_turns_are_dealt_out_and_each_is_the_speech_of_a_single_server(
    fleet: Laptop, single: Server
) -> None:
    expected, spoken = [
        await asyncio.gather(*(speak(http, SENTENCE, seed) for seed in range(6)))
        for http in (single.http, fleet.http)
    ]
    assert {one.heard.reason for one in spoken} == {"stop"}
    assert len({one.replica for one in spoken}) == 3
    for one, other in zip(spoken, expected, strict=True):
        check_alike(one.samples, other.samples)
        assert 2.5 < len(one.samples) / RATE < 8.0


async def test_a_cloned_voice_stays_where_it_is_and_sounds_as_on_a_single_server(
    fleet: Laptop, single: Server
) -> None:
    homes: dict[str, Counter[str]] = {voice: Counter() for voice in CLONED}
    unnamed, *named = [
        one.samples
        for one in await asyncio.gather(
            *(speak(single.http, SENTENCE, 1, voice) for voice in ("", *CLONED))
        )
    ]
    expected = dict(zip(CLONED, named, strict=True))
    for _ in range(3):
        for voice in CLONED:
            spoken = await speak(fleet.http, SENTENCE, 1, voice)
            assert spoken.heard.reason == "stop"
            homes[voice][spoken.replica] += 1
            check_alike(spoken.samples, expected[voice])
    assert [list(places.values()) for places in homes.values()] == [[3], [3]]
    heard = [unnamed, *named]
    assert not any(np.array_equal(a, b) for i, a in enumerate(heard) for b in heard[:i])


async def test_a_killed_replica_takes_only_its_own_streams_along_and_a_retry_speaks(
    fleet: Laptop, stories: list[Samples]
) -> None:
    begun = [asyncio.Event() for _ in stories]
    turns = [
        asyncio.create_task(speak(fleet.http, STORY, seed, begun=one))
        for seed, one in enumerate(begun)
    ]
    await asyncio.wait_for(asyncio.gather(*(one.wait() for one in begun)), 120)
    os.kill(fleet.replica_processes()[0], signal.SIGKILL)
    ended = await asyncio.gather(*turns)
    lost = {seed: one for seed, one in enumerate(ended) if one.heard.reason is None}
    there = {seed: one for seed, one in enumerate(ended) if seed not in lost}
    gone = {one.replica for one in lost.values()}
    assert len({one.replica for one in ended}) == 3 and len(gone) == 1
    assert not gone & {one.replica for one in there.values()}
    for seed, one in lost.items():
        # What clients of the field take for a broken connection, and try again.
        assert one.heard.close_code == 1006
        so_far = one.samples
        assert 0 < len(so_far) < len(stories[seed])
        assert np.abs(so_far - stories[seed][: len(so_far)]).max() <= 2
    again = await asyncio.gather(*(speak_with_retries(fleet.http, STORY, seed) for seed in lost))
    for seed, one in (there | dict(zip(lost, (one for one, _ in again), strict=True))).items():
        assert one.heard.reason == "stop"
        check_alike(one.samples, stories[seed])
    logger.info(f"{len(lost)} of 6 streams lost; tries after it: {[tries for _, tries in again]}")
    await asyncio.to_thread(fleet.wait_for, 3, 120)


class Pooled:
    """Fish's own client and the connections that it keeps, turn after turn in a thread."""

    def __init__(self, http: str) -> None:
        self.turns: list[int] = []
        self.connections = 0
        self.failed: list[str] = []
        self._http = http
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Pooled:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()

    def _trace(self, name: str, _: object) -> None:
        self.connections += name == "connection.connect_tcp.complete"

    def _traced(self, request: httpx.Request) -> None:
        request.extensions["trace"] = self._trace

    def _run(self) -> None:
        hooks = {"request": [self._traced]}
        with httpx.Client(base_url=self._http, timeout=30, event_hooks=hooks) as kept:
            client = fishaudio.FishAudio(api_key="key", base_url=self._http, httpx_client=kept)
            while not self._stop.is_set():
                try:
                    audio = client.tts.convert(text="Hello there, my friend.", format="pcm")
                except (fishaudio.FishAudioError, httpx.HTTPError) as error:
                    self.failed.append(repr(error))
                else:
                    self.turns.append(len(audio))
                self._stop.wait(0.5)


async def test_an_update_under_load_loses_no_turn_nor_one_over_a_pool(fleet: Laptop) -> None:
    before = set(fleet.servers("UP"))
    stop = asyncio.Event()
    ended: list[tuple[Spoken, int]] = []

    async def call(caller: int) -> None:
        while not stop.is_set():
            ended.append(await speak_with_retries(fleet.http, SENTENCE, caller))
            await asyncio.sleep(1)

    async with connect(live_url(fleet.http) + "?pool=1", compression=None) as idle:
        with Pooled(fleet.http) as pooled:
            calls = [asyncio.create_task(call(caller)) for caller in range(2)]
            fleet.args["max_sockets"] = 900
            await asyncio.to_thread(fleet.deploy)
            moved = len(ended), len(pooled.turns)
            await until(lambda: len(ended) > moved[0] + 2 and len(pooled.turns) > moved[1] + 1)
            stop.set()
            await asyncio.gather(*calls)
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(idle.recv(), 30)
    after = set(fleet.servers("UP"))
    assert len(after) == 3 and not before & after
    logger.info(
        f"{len(ended)} turns, tries {dict(Counter(tries for _, tries in ended))}; {pooled.failed} "
        f"failed of {len(pooled.turns)} turns over a pool, {pooled.connections} connections"
    )
    assert {one.heard.reason for one, _ in ended} == {"stop"}
    assert min(moved) > 2, "while replicas went"
    assert {one.replica for one, _ in ended[-2:]} <= after
    assert pooled.failed == []
    assert min(pooled.turns) > RATE and pooled.connections < len(pooled.turns) / 2
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001


def lines(path: Path) -> None:
    usual = {"text": STORY, "sample_rate": RATE, "prosody": {"normalize_loudness": False}}
    path.write_text(
        "".join(json.dumps({"id": f"n{n}", "seed": n, **usual}) + "\n" for n in range(LINES))
    )


def samples(path: Path) -> Samples:
    with wave.open(str(path)) as file:
        assert file.getframerate() == RATE
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int32)


async def test_backfill_gives_way_to_live_turns_and_every_line_is_spoken_once(
    fleet: Laptop, stories: list[Samples], tmp_path: Path
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    lines(source)
    # Five turns are more than three replicas are to have.
    rules = {"target_load": 0.35, "spare": 0, "start_s": 2.0, "hold_s": 1.0, "down_every_s": 1.0}
    config = fleet.config({"autoscaling_config": {**fleet.scaling(4, **rules), "min_replicas": 3}})
    await asyncio.to_thread(cluster.deploy, fleet.place, config)
    with fleet.backfill(source, out, config, workers=1) as driver:
        await until(lambda: len(list(out.glob("*.wav"))) >= 1, 60)
        begun_s = time.monotonic()
        burst = [asyncio.create_task(speak(fleet.http, STORY, seed)) for seed in range(5)]
        with Contended() as contended:
            gone_s = await until(lambda: not fleet.worker_processes()) - begun_s
        done = len(list(out.glob("*.wav")))
        live_turns = await asyncio.gather(*burst)
        printed, _ = await asyncio.to_thread(driver.communicate, timeout=90)
    logger.info(
        f"worker gone {gone_s * 1e3:.0f} ms after a burst with {done} of {LINES} lines done; "
        f"all after {time.monotonic() - begun_s:.1f} s: {printed.strip()}"
    )
    assert driver.returncode == 0
    assert gone_s < contended.times and done < LINES
    assert {one.heard.reason for one in live_turns} == {"stop"}
    for seed, one in enumerate(live_turns):
        check_alike(one.samples, stories[seed])
    manifest = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
    ids = [f"n{number}" for number in range(LINES)]
    assert sorted(one["id"] for one in manifest) == sorted(ids)
    assert sorted(path.stem for path in out.glob("*.wav")) == sorted(ids)
    assert not list(out.glob(".*.part"))
    for one, story in zip(ids, stories, strict=True):
        check_alike(samples(out / f"{one}.wav"), story)
