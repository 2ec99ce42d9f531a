"""``Crew``: batch workers on a cluster, each an actor with an engine of its own.

``speak`` is what ``shoal batch`` asks of a speaker: a line goes to a worker that has room and its
audio comes back in pieces. A worker that was told to go takes its lines along, and those are spoken
again elsewhere. Files are the caller's: a worker that dies in the middle of a line leaves nothing.
Any thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, cast

import ray
from ray.exceptions import RayActorError, RayTaskError

from shoal.realtime.batch import GaveWay, Job, Write
from shoal.realtime.say import SayError

from .backfill import Worker
from .settings import ReplicaSettings

PIECE_BYTES: Final = 128 << 10
PIECES: Final = 16
"""So many wait between an engine and the driver; then the engine pauses."""
WAIT_S: Final = 0.5
"""A line that finds no worker within this is asked again whether it is still wanted."""


class Speaking:
    """The actor: one engine, spoken with by several calls at once."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self._settings = settings
        self._speaker: Any = None

    def where(self) -> str:
        """The node that this runs on, as Ray writes it."""
        return str(cast("Any", ray).get_runtime_context().get_node_id())

    def load(self) -> None:
        """Bring the engine up; blocks until a line would be fast."""
        from shoal.realtime.batch_speakers import LocalSpeaker

        from .engines import make_engine
        from .voice_source import voice_store

        engine = make_engine(self._settings, voice_store(self._settings))
        self._speaker = LocalSpeaker(engine).__enter__()

    def speak(self, job: Job) -> Generator[bytes | tuple[str, bool]]:
        """Pieces of audio; last of all, where it failed, (why, whether it may pass)."""
        line: queue.Queue[bytes | tuple[str, bool] | None] = queue.Queue(PIECES)

        def work() -> None:
            kept = bytearray()

            def write(data: bytes) -> None:
                kept.extend(data)
                if len(kept) >= PIECE_BYTES:
                    line.put(bytes(kept))
                    kept.clear()

            end: tuple[str, bool] | None = None
            try:
                self._speaker.speak(job, write)
                if kept:
                    line.put(bytes(kept))
            except SayError as error:
                end = (str(error), error.passing)
            finally:
                if end is not None:
                    line.put(end)
                line.put(None)

        threading.Thread(target=work, daemon=True).start()
        while (piece := line.get()) is not None:
            yield piece


@dataclass(slots=True)
class _Member:
    actor: Any
    born_s: float
    where: Any
    loaded: Any
    node: str = ""
    ready: bool = False
    busy: int = 0
    evicted: bool = False


@dataclass(slots=True)
class Counts:
    """What became of the workers."""

    hired: int = 0
    evicted: int = 0
    lost: int = 0


class Crew:
    """``options`` are Ray's for each worker; ``streams`` lines each speaks at once."""

    def __init__(
        self,
        settings: ReplicaSettings,
        options: Mapping[str, Any],
        streams: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._options = dict(options)
        self._streams = streams
        self._clock = clock
        self._numbers = count(1)
        self._members: dict[str, _Member] = {}
        self._changed = threading.Condition()
        self.counts = Counts()
        self.broken = ""
        """Why no worker can be had at all."""

    # For the watch --------------------------------------------------------------------------------

    def hire(self) -> None:
        """Ask for one more."""
        actor_class = cast("Any", ray).remote(Speaking)
        actor = actor_class.options(
            **self._options, max_concurrency=self._streams + 2, max_restarts=0
        ).remote(self._settings)
        member = _Member(actor, self._clock(), actor.where.remote(), actor.load.remote())
        with self._changed:
            self._members[f"worker-{next(self._numbers)}"] = member
            self.counts.hired += 1

    def evict(self, identity: str) -> None:
        """End one at once, with whatever it speaks. Blocks until Ray was told."""
        with self._changed:
            member = self._members.pop(identity, None)
            if member is None:
                return
            member.evicted = True
            self.counts.evicted += 1
        cast("Any", ray).kill(member.actor, no_restart=True)

    def look(self) -> list[Worker]:
        """Those there are, after noting who has come up and who is gone."""
        with self._changed:
            for identity, member in list(self._members.items()):
                try:
                    if not member.node and _done(member.where):
                        member.node = str(cast("Any", ray).get(member.where))
                    if not member.ready and _done(member.loaded):
                        cast("Any", ray).get(member.loaded)
                        member.ready = True
                        self._changed.notify_all()
                except RayActorError:
                    self._lose(identity)
                except RayTaskError as error:
                    # Another one would fail alike.
                    self.broken = f"a worker cannot start: {_cause(error)}"
                    self._lose(identity)
                    self._changed.notify_all()
            return [
                Worker(identity, member.node, member.born_s)
                for identity, member in self._members.items()
            ]

    def end(self) -> None:
        """Let all of them go; there is nothing left to do."""
        with self._changed:
            members, self._members = self._members, {}
        for member in members.values():
            member.evicted = True
            cast("Any", ray).kill(member.actor, no_restart=True)

    # For the batch --------------------------------------------------------------------------------

    def speak(self, job: Job, write: Write) -> None:
        """See :class:`shoal.realtime.batch.Speaker`.

        :raises GaveWay: there is no worker now, or it was told to go.
        """
        identity, member = self._take()
        try:
            pieces = member.actor.speak.options(num_returns="streaming").remote(job)
            for reference in pieces:
                match cast("Any", ray).get(reference):
                    case bytes(audio):
                        write(audio)
                    case (why, passing):
                        raise SayError(str(why), passing=bool(passing))
                    case other:
                        raise AssertionError(f"no piece: {type(other)}")
        except RayActorError:
            if member.evicted:
                raise GaveWay("the worker had to give way") from None
            with self._changed:
                self._lose(identity)
            raise SayError("a worker died", passing=True) from None
        finally:
            with self._changed:
                member.busy -= 1
                self._changed.notify()

    def _take(self) -> tuple[str, _Member]:
        """The worker with the most room."""

        def free() -> list[tuple[str, _Member]]:
            return [
                (identity, member)
                for identity, member in self._members.items()
                if member.ready and member.busy < self._streams
            ]

        with self._changed:
            if not self._changed.wait_for(lambda: self.broken or free(), WAIT_S):
                raise GaveWay("no worker has room")
            if self.broken:
                raise SayError(self.broken)
            identity, member = min(free(), key=lambda one: one[1].busy)
            member.busy += 1
            return identity, member

    def _lose(self, identity: str) -> None:
        """It died by itself."""
        if self._members.pop(identity, None) is not None:
            self.counts.lost += 1


def _done(reference: Any) -> bool:
    there, _ = cast("Any", ray).wait([reference], timeout=0)
    return bool(there)


def _cause(error: RayTaskError) -> str:
    return type(cast("Any", error).cause).__name__
