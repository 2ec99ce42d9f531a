"""``Gateway``: what all sockets of one server share, from warm-up to drain. On the event loop.

Admits or refuses a socket before its upgrade, gives it a connection, and ends them all in order.
Knows no routes and no HTTP server; ``app.py`` and ``server.py`` have those.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

from shoal.engine.api import Engine
from shoal.engine.voices import VoiceStore
from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import TtsRequest
from shoal.proto.request import RATES

from . import auth, log
from .audio import FormatUnavailable, make_encoder
from .config import ServerConfig
from .connection import Connection
from .encode import EncodePool
from .hub import Hub
from .link import Dialect, Link
from .metrics import Metrics
from .parsing import Parsing
from .record import TurnRecorder
from .session import Rules
from .surroundings import Surroundings
from .tokens import Ledger, LedgerAway, Tokens
from .trace import BothTraces, NoTraces, Traces
from .unread import nothing_unread, unread_by_latin
from .voice_names import VoiceNames

POOLING_AGENTS: Final = ("livekit-plugins-",)
RETRY_AFTER_S: Final = 1
DRAIN_POLL_S: Final = 0.05
LIST_VOICES_S: Final = 5.0
"""How long a start waits for the first list of voices."""

logger = logging.getLogger("shoal.gateway")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP answer instead of an upgrade."""

    status: int
    message: str
    retry_after_s: int | None = None


def unavailable_formats(model_rate: int) -> Mapping[str, str]:
    """What this machine cannot encode, and what would help."""
    problems: dict[str, str] = {}
    for name, rates in RATES.items():
        try:
            make_encoder(name, model_rate, rates[-1])
        except FormatUnavailable as problem:
            problems[name] = str(problem)
    return problems


class Gateway:
    """See the module. ``run`` first; ``drain`` and ``stop`` last."""

    def __init__(
        self,
        engine: Engine,
        config: ServerConfig,
        voices: VoiceStore | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.recorder = None if config.record_turns is None else TurnRecorder(config.record_turns)
        if self.recorder is not None:
            traces = self.recorder if traces is None else BothTraces(traces, self.recorder)
        self.traces = traces
        self.config = config
        self.voices = voices
        if voices is None and config.voices_dir is not None:
            self.voices = VoiceStore(config.voices_dir)
        self.engine = engine
        self.metrics = Metrics(engine.stats, engine.info.slots)
        self.parsing = Parsing()
        self.tokens = Tokens(config.token_secret)
        self.ledger: Ledger | None = None
        """Where single-use tokens are spent, when other servers take the same ones."""
        self.ready = False
        self.draining = False
        self.failed = False
        self.on_ready: Callable[[], None] = lambda: None
        self.request_exit: Callable[[], None] = lambda: None
        self._around: Surroundings | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._sockets = 0
        self._numbers = count(1)
        self.names = VoiceNames(self._voice_ids, config.voice_aliases, config.fallback_voice)
        self._drain_until_s = float("inf")
        self._unavailable = unavailable_formats(engine.info.sample_rate)

    # Life ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Bind to the running loop and warm the engine up beside it."""
        hub = Hub(self.engine, asyncio.get_running_loop(), self._engine_died)
        pool = EncodePool(self.config.encode_threads, hub.to_loop)
        self._around = Surroundings(
            self.config,
            hub,
            pool,
            self.metrics,
            self.engine.info.sample_rate,
            self.parsing,
            traces=self.traces or NoTraces(),
        )
        self._spawn(self._warm_up(hub))
        self._spawn(self.names.watch())

    async def _warm_up(self, hub: Hub) -> None:
        started_s = time.monotonic()
        try:
            await asyncio.to_thread(self.engine.start, hub.deliver, hub.fatal)
        except Exception as error:  # the edge of the engine's start
            self._engine_died(error)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIST_VOICES_S):
                await self.names.listed.wait()
        self.ready = True
        seconds = time.monotonic() - started_s
        info = self.engine.info
        log.event(logger, "ready", model=info.model, slots=info.slots, seconds=seconds)
        self.on_ready()

    def _voice_ids(self) -> Collection[str]:
        if self.voices is not None:
            return self.voices.ids()
        return [voice.voice_id for voice in self.engine.voices()]

    def _engine_died(self, error: BaseException) -> None:
        logger.error("engine_died", exc_info=error)
        self.failed = True
        self.ready = False
        self.draining = True
        for connection in list(self._connections):
            connection.abort(Code.ENGINE, "the engine failed")
        self.request_exit()

    @property
    def hub(self) -> Hub:
        assert self._around is not None, "run() comes first"
        return self._around.hub

    def hurry(self) -> None:
        """Let a drain wait no longer."""
        self._drain_until_s = time.monotonic()

    async def drain(self) -> None:
        """Admit nobody, close who is idle, let turns finish within the limit; returns when no
        connection is left or none will end by itself."""
        self.draining = True
        started_s = time.monotonic()
        self._drain_until_s = min(self._drain_until_s, started_s + self.config.drain_s)
        log.event(logger, "draining", sockets=len(self._connections))
        while self._connections:
            now_s = time.monotonic()
            if now_s > self._drain_until_s + self.config.send_stall_s:
                break
            for connection in list(self._connections):
                if now_s > self._drain_until_s:
                    connection.abort(Code.DRAINING, "server is shutting down")
                else:
                    connection.drain()
            await asyncio.sleep(DRAIN_POLL_S)
        log.event(logger, "drained", seconds=time.monotonic() - started_s)

    async def stop(self) -> None:
        """Stop the engine and the threads. Call when no connection is left."""
        for task in list(self._tasks):
            task.cancel()
        self.ready = False
        await asyncio.to_thread(self.engine.stop)
        if self._around is not None:
            await asyncio.to_thread(self._around.pool.stop)
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Sockets ------------------------------------------------------------------------------------

    def unauthorised(
        self, headers: Mapping[str, str], query: Mapping[str, str], takes_token: bool = False
    ) -> Refusal | None:
        """Why this client may not ask for anything, or ``None``."""
        config = self.config
        unknown = auth.refusal(
            headers,
            query,
            config.api_keys,
            config.allow_origins,
            self.tokens.holds if takes_token else None,
        )
        return None if unknown is None else self._refused("auth", Refusal(*unknown))

    def refusal(
        self, headers: Mapping[str, str], query: Mapping[str, str], takes_token: bool = False
    ) -> Refusal | None:
        """Why this client may not connect now, or ``None``.

        ``takes_token``: a single-use token does for a key; ``claim`` spends it.
        """
        unknown = self.unauthorised(headers, query, takes_token)
        if unknown is not None:
            return unknown
        if self.draining:
            return self._refused("draining", Refusal(503, "Server is shutting down", RETRY_AFTER_S))
        if not self.ready:
            return self._refused("starting", Refusal(503, "Server is starting", RETRY_AFTER_S))
        if self._sockets >= self.config.max_sockets:
            return self._refused("sockets", Refusal(429, "Too many connections", RETRY_AFTER_S))
        return None

    async def claim(self, headers: Mapping[str, str], query: Mapping[str, str]) -> Refusal | None:
        """Spend the token of a client that ``refusal`` let in and that is counted since; why it
        may not connect after all, or ``None``. Call it last: nothing else may refuse afterwards."""
        key = auth.presented_key(headers, query)
        ticket = None if key is None else self.tokens.ticket(key)
        if key is None or ticket is None or not self.config.api_keys:
            return None
        try:
            ledger = self.ledger
            spent = self.tokens.spend(key) if ledger is None else await ledger.claim(ticket)
        except LedgerAway:
            return self._refused("ledger", Refusal(503, "Try again", RETRY_AFTER_S))
        if spent:
            return None
        return self._refused("auth", Refusal(401, "Invalid or missing API key"))

    def _refused(self, reason: str, refusal: Refusal) -> Refusal:
        self.metrics.refusals.labels(reason).inc()
        log.event(logger, "handshake_refused", reason=reason, status=refusal.status)
        return refusal

    def occupy(self) -> None:
        """Count a socket from before its upgrade, so that no two take the last place."""
        self._sockets += 1
        self.metrics.sockets.inc()

    def vacate(self) -> None:
        self._sockets -= 1
        self.metrics.sockets.dec()

    async def serve(
        self, link: Link, dialect: Dialect, reference_id: str | None, pools: bool
    ) -> None:
        """Serve an open link to its end. ``pools``: it may come back for another turn."""
        assert self._around is not None, "run() comes first"
        config, info = self.config, self.engine.info
        rules = Rules(
            new_stream=self._around.hub.new_stream,
            check=self._check,
            voice_of=self.names.voice_of,
            sample_rate=info.sample_rate,
            slots=info.slots,
            grace_s=config.pooled_grace_s if pools else config.grace_s,
            voices_by_reference=info.voices_by_reference,
            speakers=info.speakers,
            model=info.model,
            unread=unread_by_latin if info.latin_only else nothing_unread,
        )
        connection = Connection(next(self._numbers), link, dialect, rules, self._around)
        self._connections.add(connection)
        log.event(logger, "opened", socket=connection.number, dialect=dialect.name, pools=pools)
        try:
            await connection.run(reference_id)
        finally:
            self._connections.discard(connection)

    def _check(self, request: TtsRequest) -> None:
        problem = self._unavailable.get(request.format)
        if problem is not None:
            raise ProtocolError(Code.BAD_REQUEST, problem)
