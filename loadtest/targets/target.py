"""What a target has to offer to be measured: the whole plug. Add one as a file like the others.

The driver does the clock, the pacing and the judgement; a target only speaks its protocol. One
event loop, one turn at a time on a connection. Problems are raised as :class:`TurnOver`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from shoal.loadtest.measure.timeline import Ending
from shoal.loadtest.plan.voices import Voice


class TurnOver(Exception):
    """The turn cannot go on. ``ending`` says whose doing it was.

    ``detail`` names the reason in few words that repeat (a status, a close code): it is counted,
    so nothing that differs from turn to turn belongs there.
    """

    def __init__(self, ending: Ending, detail: str) -> None:
        super().__init__(f"{ending.value}: {detail}")
        self.ending = ending
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Audio:
    """One message's audio bytes, in the container that was asked for."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """What the server tells about the turn itself; each field only when it does.

    ``stages``: where its time went, in seconds. ``rate``: the sample rate it says it sends.
    ``audio_s``: how much audio it says it sent.
    """

    stages: Mapping[str, float] = field(default_factory=dict[str, float])
    rate: int | None = None
    audio_s: float | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The protocol's end signal: all audio of the turn was delivered."""


TurnEvent = Audio | Note | Done


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Where and how to connect. ``extra`` holds a dialect's own settings (``--set name=value``)."""

    url: str
    api_key: str = field(default="", repr=False)
    model: str = ""
    container: str = "pcm"
    rate: int = 24000
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    connect_timeout_s: float = 10.0

    def flag(self, name: str, default: str) -> str:
        """The dialect's own setting ``name``."""
        return self.extra.get(name, default)


class Connection(Protocol):
    """One connection; turns follow one another on it while ``usable``."""

    @property
    def usable(self) -> bool:
        """Whether another turn can begin on this connection."""
        ...

    async def prepare(self, voice: Voice) -> None:
        """Everything that can be done before there is text; waits for an answer if there is one."""
        ...

    async def send_text(self, text: str) -> None:
        """Hand over a piece of the turn's text, verbatim."""
        ...

    async def end_text(self) -> None:
        """The turn's text is complete: what is not yet spoken must be spoken."""
        ...

    async def receive(self) -> TurnEvent:
        """The next event of the turn. Cancelling a call loses nothing."""
        ...

    async def cut(self) -> bool:
        """Barge-in: stop speaking at once. True if the connection survives it."""
        ...

    async def close(self) -> None:
        """Never raises; returns within about a second."""
        ...


class Target(Protocol):
    """A way to reach a server. Built from :class:`TargetOptions`, used by one process.

    ``voice_at_connect``: the voice is part of the address, so another voice needs another
    connection. ``settings`` names what ``--set`` understands, with a line of explanation.
    """

    voice_at_connect: ClassVar[bool]
    settings: ClassVar[Mapping[str, str]]

    def __init__(self, options: TargetOptions) -> None: ...

    async def connect(self, voice: Voice) -> Connection:
        """A fresh connection, handshake done."""
        ...
