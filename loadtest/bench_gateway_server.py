"""The real server on a :class:`CostlessRunner`, with a probe inside. For ``bench_gateway``."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from multiprocessing.connection import Connection

from shoal.engine.config import EngineConfig
from shoal.engine.service import SpeechEngine
from shoal.realtime.config import ServerConfig
from shoal.realtime.server import serve

from .bench_gateway_runner import Device, costless_model

LAG_PERIOD_S = 0.01


class _Probe:
    """Inside the server: answers each question of the bench with what was spent so far."""

    def __init__(self, questions: Connection, engine: SpeechEngine) -> None:
        self._questions = questions
        self._engine = engine
        self._lags: list[float] = []
        self._collect_s: list[float] = []
        self._collecting_since_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def ready(self, _: str) -> None:
        """On the loop."""
        gc.callbacks.append(self._collects)
        self._task = asyncio.get_running_loop().create_task(self._watch())
        threading.Thread(target=self._answer, name="probe", daemon=True).start()
        self._questions.send("ready")

    async def _watch(self) -> None:
        clock = time.monotonic
        while True:
            due_s = clock() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self._lags.append(clock() - due_s)

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        """Everything stands still meanwhile."""
        if phase == "start":
            self._collecting_since_s = time.monotonic()
        else:
            self._collect_s.append(time.monotonic() - self._collecting_since_s)

    def _answer(self) -> None:
        while self._questions.recv():
            spent = {
                thread.name: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
                for thread in threading.enumerate()
                if thread.ident is not None
            }
            lags, self._lags = self._lags, []
            pauses, self._collect_s = self._collect_s, []
            stats = self._engine.stats()
            answer = (time.monotonic(), spent, lags, pauses, stats.frames, stats.steps)
            self._questions.send(answer)


def run(
    port: int,
    slots: int,
    frames: int,
    prefill: tuple[int, float],
    switch_interval_s: float | None,
    questions: Connection,
) -> int:
    """Serve until killed; a probe answers at ``questions`` once it is ready.

    ``prefill``: tiles in a pass, and seconds for each but the first.
    """
    tiles, tile_s = prefill
    model = costless_model(slots, Device(frames=frames, prefill_tiles=tiles, prefill_tile_s=tile_s))
    engine = SpeechEngine(EngineConfig(slots=slots), model=model)
    config = ServerConfig(port=port, max_sockets=2 * slots, grace_s=60.0, log_level="warning")
    probe = _Probe(questions, engine)

    def ready(address: str) -> None:
        if switch_interval_s is not None:
            sys.setswitchinterval(switch_interval_s)
        probe.ready(address)

    return serve(config, engine, ready)
