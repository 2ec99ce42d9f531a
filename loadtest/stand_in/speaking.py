"""Speaks one turn as its lie says, through whatever wire it is given. One event loop."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

from .lie import capped_s, chunks, full_length_s, speech
from .truth import Truth, now_s


def wav_header(rate: int) -> bytes:
    """A 44-byte header with the placeholder sizes of a stream."""
    size = 0xFFFFFF00
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        (size + 36) & 0xFFFFFFFF,
        b"WAVE",
        b"fmt ",
        16,
        1,
        1,
        rate,
        2 * rate,
        2,
        16,
        b"data",
        size,
    )


async def speak(
    truth: Truth,
    chars: int,
    container: str,
    rate: int,
    send_audio: Callable[[bytes], Awaitable[None]],
    cap_frames: int = 0,
) -> None:
    """All of the turn's audio; writes into ``truth`` when each chunk left. Cancel to cut."""
    lie = truth.lie
    true_rate = lie.true_rate or rate
    length_s = full_length_s(lie, chars)
    truth.declared_s = capped_s(lie, length_s, cap_frames)
    pcm = speech(lie, length_s, true_rate)[: 2 * round(truth.declared_s * true_rate)]
    planned = chunks(lie, pcm, true_rate)
    header = wav_header(true_rate) if container == "wav" else b""
    for k, chunk in enumerate(planned):
        wait_s = chunk.wait_s
        if header and lie.header_ahead_s:
            await asyncio.sleep(wait_s - lie.header_ahead_s)
            truth.header_s = now_s()
            await send_audio(header)
            header, wait_s = b"", lie.header_ahead_s
        await asyncio.sleep(wait_s)
        truth.sent_s.append(now_s())
        truth.sent_samples.append(len(chunk.pcm) // 2)
        await send_audio(header + chunk.pcm if k == 0 else chunk.pcm)
        header = b""
