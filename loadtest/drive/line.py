"""One virtual caller's line to the target: connect, prepare, speak one turn, be ready again.

The only place where turns meet the clock and the network. Runs on one event loop; one turn at a
time. A turn never raises: whatever happens to it is in the :class:`Turn`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shoal.loadtest.measure.timeline import Ending, Kind, Turn
from shoal.loadtest.measure.unpack import UnreadableAudio
from shoal.loadtest.plan.turn_plan import TurnPlan
from shoal.loadtest.plan.voices import Voice
from shoal.loadtest.targets.target import (
    Audio,
    Connection,
    Done,
    Note,
    Target,
    TargetOptions,
    TurnEvent,
    TurnOver,
)

from .recording import Recording

now_s = time.monotonic
"""One clock for all processes of a run: on Linux it counts alike in each of them."""


@dataclass(frozen=True, slots=True)
class LineRules:
    """Patience. ``cut_watch_s``: how long to listen for audio that comes after a barge-in."""

    turn_timeout_s: float = 60.0
    cut_watch_s: float = 0.3
    retry_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Spoken:
    """A turn and what it sounded like: mono int16 PCM at ``turn.rate``."""

    turn: Turn
    pcm: bytes


@dataclass(slots=True)
class LineCounts:
    """What happens between turns, for all lines of a process."""

    connects: int = 0
    reconnects: int = 0
    stray_messages: int = 0


async def sleep_until(at_s: float) -> None:
    """Until the clock of :data:`now_s` shows ``at_s``; returns late by up to a timer's grain."""
    delay_s = at_s - now_s()
    if delay_s > 0:
        await asyncio.sleep(delay_s)


class Line:
    """``on_audio(at_s, seconds)`` hears of every playable arrival, whatever the turn's fate."""

    def __init__(
        self,
        target: Target,
        options: TargetOptions,
        rules: LineRules,
        counts: LineCounts,
        on_audio: Callable[[float, float], None],
    ) -> None:
        self._target = target
        self._options = options
        self._rules = rules
        self._counts = counts
        self._on_audio = on_audio
        self._connection: Connection | None = None
        self._voice: Voice | None = None
        self._connect_s: float | None = None
        self._prepare_s: float | None = None
        self._prepared = False
        self._notes: deque[Note] = deque(maxlen=8)

    async def prepare(self, voice: Voice) -> None:
        """Connect if need be and prepare ``voice``; raises TurnOver when the target will not."""
        if self._prepared and voice == self._voice and self._usable():
            return
        self._prepared = False
        reused = self._usable() and (voice == self._voice or not self._target.voice_at_connect)
        try:
            await self._connect_and_prepare(voice, reused)
        except TurnOver:
            if not reused:
                raise
            # The server had closed an idle connection: that is its right, so try a fresh one.
            self._counts.reconnects += 1
            await self._connect_and_prepare(voice, False)

    async def speak(self, plan: TurnPlan) -> Spoken:
        """Wait until the turn is due, speak it, and return what was seen of it."""
        recording = self._recording(plan)
        ending, detail = Ending.FINISHED, ""
        patience_s = max(0.0, plan.scheduled_s - now_s()) + self._rules.turn_timeout_s
        try:
            async with asyncio.timeout(patience_s):
                if plan.kind is Kind.WARM:
                    await self._idle_until(plan)
                else:
                    await sleep_until(plan.scheduled_s)
                await self.prepare(plan.voice)
                self._begin(recording)
                await self._converse(plan, recording)
        except TurnOver as over:
            ending, detail = over.ending, over.detail
        except UnreadableAudio as unreadable:
            ending, detail = Ending.FAILED, str(unreadable)
        except TimeoutError:
            ending, detail = Ending.TIMEOUT, "turn timed out"
        ended_s = now_s()
        if recording.cut_s is not None:
            ending, detail = Ending.CUT, ""
            await self._watch_after_cut(recording)
        elif ending is not Ending.FINISHED:
            await self.close()
        if recording.compressed:
            turn = await asyncio.to_thread(recording.finish, ended_s, ending, detail)
        else:
            turn = recording.finish(ended_s, ending, detail)
        return Spoken(turn, recording.pcm)

    def refused(self, plan: TurnPlan, over: TurnOver) -> Spoken:
        """The turn that could not even begin, because preparing it ended with ``over``."""
        return Spoken(self._recording(plan).finish(now_s(), over.ending, over.detail), b"")

    async def close(self) -> None:
        """Hang up; the line can be prepared again."""
        self._prepared = False
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _usable(self) -> bool:
        return self._connection is not None and self._connection.usable

    async def _connect_and_prepare(self, voice: Voice, reused: bool) -> None:
        if not reused:
            await self.close()
            began_s = now_s()
            self._connection = await self._target.connect(voice)
            self._connect_s = now_s() - began_s
            self._counts.connects += 1
        assert self._connection is not None
        began_s = now_s()
        await self._connection.prepare(voice)
        self._prepare_s = now_s() - began_s
        self._voice, self._prepared = voice, True

    def _recording(self, plan: TurnPlan) -> Recording:
        return Recording(plan, self._options.container, self._options.rate, self._on_audio)

    def _begin(self, recording: Recording) -> None:
        """Hand the turn what was measured and heard while preparing it."""
        recording.connect_s, self._connect_s = self._connect_s, None
        recording.prepare_s, self._prepare_s = self._prepare_s, None
        self._prepared = False
        for note in self._notes:
            recording.note(note)
        self._notes.clear()

    async def _idle_until(self, plan: TurnPlan) -> None:
        """Prepared, until the turn is due. Listens meanwhile, so that nothing stale is left.

        A server that hangs up on the idle line is called again, as a user's client would.
        """
        while (left_s := plan.scheduled_s - now_s()) > 0:
            try:
                # Not cut short when the turn falls due: from then on it is the turn's latency.
                await self.prepare(plan.voice)
                assert self._connection is not None
                async with asyncio.timeout(plan.scheduled_s - now_s()):
                    event = await self._connection.receive()
                if isinstance(event, Note):
                    self._notes.append(event)
                else:
                    self._counts.stray_messages += 1
            except TimeoutError:
                return
            except TurnOver:
                await self.close()
                if now_s() >= plan.scheduled_s:
                    raise
                self._counts.reconnects += 1
                await asyncio.sleep(min(self._rules.retry_s, left_s))

    async def _converse(self, plan: TurnPlan, recording: Recording) -> None:
        """Send and listen side by side; the first to fail ends both."""
        assert self._connection is not None
        sender = asyncio.create_task(self._send(self._connection, plan, recording))
        listener = asyncio.create_task(self._listen(self._connection, plan, recording))
        try:
            done, _ = await asyncio.wait((sender, listener), return_when=asyncio.FIRST_COMPLETED)
            if listener not in done:
                sender.result()
            await listener
        finally:
            for task in (sender, listener):
                if not task.done():
                    task.cancel()
            await asyncio.gather(sender, listener, return_exceptions=True)

    async def _send(self, connection: Connection, plan: TurnPlan, recording: Recording) -> None:
        for number, piece in enumerate(plan.pieces):
            await sleep_until(plan.scheduled_s + piece.offset_s)
            if number == 0:
                recording.began_s = now_s()
            if number == plan.speakable_piece:
                recording.sent_s = now_s()
            await connection.send_text(piece.text)
        await connection.end_text()
        recording.text_done_s = now_s()

    async def _listen(
        self,
        connection: Connection,
        plan: TurnPlan,
        recording: Recording,
    ) -> None:
        waiting = plan.cut_after_s is not None
        loop = asyncio.get_running_loop()
        cut_at: float | None = None
        while True:
            try:
                async with asyncio.timeout_at(cut_at):
                    event = await connection.receive()
            except TimeoutError:
                recording.cut_s = now_s()
                if not await connection.cut():
                    await self.close()
                return
            if _take(event, recording):
                return
            if waiting and plan.cut_after_s is not None and recording.heard_audio:
                waiting = False
                cut_at = loop.time() + plan.cut_after_s

    async def _watch_after_cut(self, recording: Recording) -> None:
        """Record what still comes of a turn that was cut, for a bounded time."""
        connection = self._connection
        if connection is None:
            return
        try:
            async with asyncio.timeout(self._rules.cut_watch_s):
                while not _take(await connection.receive(), recording):
                    pass
        except TimeoutError:
            pass
        except (TurnOver, UnreadableAudio):
            await self.close()


def _take(event: TurnEvent, recording: Recording) -> bool:
    """Record one event; True when the turn is over."""
    match event:
        case Audio(data):
            recording.audio(now_s(), data)
        case Note():
            recording.note(event)
        case Done():
            return True
    return False
