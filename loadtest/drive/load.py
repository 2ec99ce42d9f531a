"""What load to put on: plain settings that travel to the worker processes. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from shoal.loadtest.measure.metrics import Rules
from shoal.loadtest.measure.slo import Slo
from shoal.loadtest.plan.recorded import RecordedTurn
from shoal.loadtest.plan.turn_plan import Speech
from shoal.loadtest.targets.target import TargetOptions

from .line import LineRules


class Mode(Enum):
    """How turns arrive, and what the level of a run counts."""

    CLOSED = "closed"  # level users, each speaks again when served: forgives a slow server
    OPEN = "open"  # level turns a second, whatever the server does
    CONVERSATION = "conversation"  # level sockets: think, speak, listen, interrupt
    REPLAY = "replay"  # turns of a recording, level times as fast as they came


@dataclass(frozen=True, slots=True)
class Load:
    """One level of load. Times in seconds.

    Closed: ``think_s`` after the line is prepared; or, with ``period_s``, every so often by the
    clock, late turns included. Open: ``burst`` turns arrive together on average. Conversation:
    ``think_s`` after the last answer was heard; every ``crowd_every_s`` a ``crowd_share`` of
    those who think speak at once. Every ``cold_every_s`` one turn is cold. Replay: ``recorded``
    from its beginning, and again when it is over.
    """

    mode: Mode
    level: float
    think_s: float = 0.0
    period_s: float = 0.0
    burst: float = 1.0
    crowd_every_s: float = 0.0
    crowd_share: float = 0.3
    ahead_s: float = 1.0
    max_sockets: int = 4096
    cold_every_s: float = 10.0
    recorded: tuple[RecordedTurn, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Timing:
    """``ramp_s`` spreads the users' first turns; the window begins after the warm-up."""

    ramp_s: float = 2.0
    warmup_s: float = 5.0
    window_s: float = 60.0
    cooldown_s: float = 2.0


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Everything one of ``workers`` processes needs to know."""

    target: str
    options: TargetOptions
    load: Load
    timing: Timing
    speech: Speech
    rules: Rules
    slo: Slo
    frame_s: float
    seed: str
    line_rules: LineRules = field(default_factory=LineRules)
    worker: int = 0
    workers: int = 1
    keep_rows: int = 5000
    keep_worst: int = 5

    @property
    def users(self) -> range:
        """This worker's share of the users, by number."""
        return range(self.worker, round(self.load.level), self.workers)
