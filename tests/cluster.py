"""Turns against a cluster: one WebSocket a turn, as a client of the field makes them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgpack
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

logger = logging.getLogger("cluster")
PCM = {"format": "pcm", "sample_rate": 24_000}
TRIES = 5
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Told:
    """What a client knows of a turn. ``status``: of a refusal before the upgrade, else 101.

    ``leads``: for each chunk but the first, when it came, in seconds since the turn began, and how
    much there still was to play.
    """

    replica: str
    audio_bytes: int
    reason: str
    status: int = 101
    seconds: float = 0.0
    leads: tuple[tuple[float, float], ...] = ()


def live_url(http: str, voice: str = "") -> str:
    query = f"?reference_id={voice}" if voice else ""
    return f"{http.replace('http', 'ws', 1)}/v1/tts/live{query}"


async def turn(
    url: str,
    text: str,
    voice: str = "",
    headers: Mapping[str, str] | None = None,
    heard: Callable[[], None] = lambda: None,
) -> Told:
    """One try. ``reason`` is the server's, or ``lost`` when the socket went without one. ``heard``
    is called when the first sound came."""
    started_s = time.monotonic()
    try:
        socket = await connect(
            url, compression=None, max_size=None, open_timeout=30, additional_headers=headers
        )
    except InvalidStatus as refusal:
        status = refusal.response.status_code
        return Told("", 0, "refused", status, time.monotonic() - started_s)
    except (OSError, EOFError, ConnectionClosed, TimeoutError):
        return Told("", 0, "lost", 0, time.monotonic() - started_s)
    assert socket.response is not None
    replica = socket.response.headers.get("x-shoal-replica", "")
    audio_bytes, reason, first_s = 0, "lost", 0.0
    leads: list[tuple[float, float]] = []
    request = {"text": "", **PCM, **({"reference_id": voice} if voice else {})}
    async with socket:
        try:
            for event in (
                {"event": "start", "request": request},
                {"event": "text", "text": text},
                {"event": "stop"},
            ):
                await socket.send(msgpack.packb(event))
            async for frame in socket:
                assert isinstance(frame, bytes)
                message = msgpack.unpackb(frame)
                if message["event"] == "audio":
                    now_s = time.monotonic()
                    if first_s:
                        lead_s = audio_bytes / 48_000 - (now_s - first_s)
                        leads.append((now_s - started_s, lead_s))
                    else:
                        first_s = now_s
                        heard()
                    audio_bytes += len(message["audio"])
                elif message["event"] == "finish":
                    reason = message["reason"]
                    break
        except ConnectionClosed:
            pass
    return Told(replica, audio_bytes, reason, 101, time.monotonic() - started_s, tuple(leads))


async def turn_with_retries(url: str, text: str, voice: str = "") -> tuple[Told, int]:
    """What the last try told, and how many there were."""
    for attempt in range(1, TRIES + 1):
        told = await turn(url, text, voice)
        if told.reason == "stop":
            return told, attempt
        logger.info("again after %s", told)
        await asyncio.sleep(RETRY_S * attempt)
    return told, TRIES
