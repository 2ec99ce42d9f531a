"""What all connections of a server share. Frozen; on the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .config import ServerConfig
from .encode import EncodePool
from .hub import Hub
from .metrics import Metrics
from .parsing import Parsing
from .trace import NoTraces, Traces


@dataclass(frozen=True, slots=True)
class Surroundings:
    """See the module."""

    config: ServerConfig
    hub: Hub
    pool: EncodePool
    metrics: Metrics
    model_rate: int
    parsing: Parsing
    clock: Callable[[], float] = field(default=time.monotonic)
    traces: Traces = field(default_factory=NoTraces)
