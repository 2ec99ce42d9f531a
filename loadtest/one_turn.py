"""One turn over a live socket, taken as a user would take it: text in, audio kept with its times.

The plain measuring stick of the benchmarks and of the speech-recognition test. One event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

from shoal.loadtest.measure.timeline import Arrival
from shoal.loadtest.plan.voices import Voice
from shoal.loadtest.targets.fish import FishConnection, Shoal
from shoal.loadtest.targets.target import Audio, Done, TargetOptions

DEFAULT_RATE = 24_000
PREFILL_WAIT_S = 0.3
"""How long after ``start`` the text is sent: long enough for any voice's prefill to be done."""


@dataclass(frozen=True, slots=True)
class Take:
    """What one turn gave. Times are seconds of the monotonic clock; ``pcm`` is mono s16le."""

    sent_s: float
    ended_s: float
    rate: int
    arrivals: tuple[Arrival, ...]
    pcm: bytes = field(repr=False)

    @property
    def ttfa_s(self) -> float:
        """From sending the text to the first audio; infinite when there was none."""
        return self.arrivals[0].at_s - self.sent_s if self.arrivals else float("inf")

    @property
    def wall_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def audio_s(self) -> float:
        return len(self.pcm) / 2 / self.rate

    @property
    def rtf(self) -> float:
        """Seconds of work for a second of audio."""
        return self.wall_s / self.audio_s if self.pcm else float("inf")


def target(url: str, api_key: str = "", rate: int = DEFAULT_RATE, **request: object) -> Shoal:
    """The server at ``url`` (``http://`` or ``ws://``), asked for PCM at ``rate``.

    ``request`` goes into ``start.request`` as it is, for instance ``seed=7``.
    """
    extra = {"latency": "balanced", "request": json.dumps(request)}
    return Shoal(TargetOptions(url, api_key, container="pcm", rate=rate, extra=extra))


async def take_turn(
    connection: FishConnection,
    text: str,
    *,
    voice: Voice | None = None,
    rate: int = DEFAULT_RATE,
    prefill_wait_s: float = PREFILL_WAIT_S,
    end_at_once: bool = True,
) -> Take:
    """Start, wait for the prefill, send ``text``, and listen to the end.

    ``end_at_once``: the end of the text is sent right behind it. Otherwise it follows the first
    audio, so that the server has to find the end of the sentence by itself.

    :raises TurnOver: the server refused, failed, or went away.
    """
    await connection.prepare(voice or Voice())
    await asyncio.sleep(prefill_wait_s)
    arrivals: list[Arrival] = []
    pcm = bytearray()
    sent_s = time.monotonic()
    await connection.send_text(text)
    if end_at_once:
        await connection.end_text()
    while True:
        match await connection.receive():
            case Audio(data=data):
                arrivals.append(Arrival(time.monotonic(), len(data), len(data) // 2))
                pcm += data
                if len(arrivals) == 1 and not end_at_once:
                    await connection.end_text()
            case Done():
                return Take(sent_s, time.monotonic(), rate, tuple(arrivals), bytes(pcm))
            case _:
                pass
