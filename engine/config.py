"""Settings of an engine: what to load, and every limit it keeps. Frozen, passed in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

BUILTIN_VOICE = Path(__file__).parent / "builtin_voice"
"""The checkpoint folder of the voice that ships."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the scheduler. Times in seconds of playout or of waiting, as named."""

    streams: int = 512
    """Open streams, idle ones included; one more is refused at once."""
    waiting: int = 64
    """Streams that may wait for a slot to begin speaking; one more is refused at once."""
    wait_s: float = 1.0
    """How long a stream may wait for its first slot before it is refused."""
    urgent_lead_s: float = 0.15
    """Streams whose listener has less than this left run before anything else."""
    park_lead_s: float = 2.0
    """Streams this far ahead of their listener leave the steps to those that are not. Those half as
    far do so while somebody is short, or is on the way to their first sound."""
    furthest_lead_s: float = 180.0
    """Streams this far ahead are left out of steps even when nobody else wants them."""
    speaking_lead_s: float = 0.5
    """With this much unplayed, a stream's text may wait for a better cut."""
    held_results: int = 2
    """Composed segments a stream may hold ready."""
    voices_waiting: int = 64
    """Voices whose recordings may wait for the encoder, the one that it works on included; one more
    is refused at once. Those of batch priority get half of the places, and their turn last."""
    voice_bytes: int = 256 << 20
    """Recordings that voices which are being prepared may hold; what is more is refused at once,
    unless there is nothing else. Batch priority gets half."""
    voice_wait_s: float = 60.0
    """How long a stream may wait for its voice to be encoded before it is refused; without a limit
    for batch priority. What was begun for it is finished: the next to ask has it at once."""
    prefill_chunk_tokens: int = 256
    """Columns that one prefill call computes before the prefill thread looks for shorter work."""
    prefix_share: float = 0.7
    """Of a context, what a voice may take at most: the rest is for what is said."""
    prefix_bytes: int | None = None
    """KV that prefilled voices which nobody uses may keep. None: half of all pages."""
    frames_per_byte: float = 6.0
    """A segment of n bytes of text is cut off after ``frames_base + n * frames_per_byte``."""
    frames_base: int = 60
    expected_frames_per_byte: float = 2.0
    """What a segment is expected to need, for the room left in a context."""
    silence_s: float = 0.1
    """What is heard instead of text with nothing to speak in it."""
    batch_streams: int = 64
    """Open streams of batch priority; one more is refused at once."""
    batch_lead_s: float = 0.5
    """Streams of batch priority run only while every listener has more than this left."""
    batch_reserve: float = 1 / 16
    """Of the slots, what batch priority leaves free for live turns to begin in, rounded up."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What to load and where."""

    model: Path = BUILTIN_VOICE
    """A checkpoint folder, or ``random:s2-pro``."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU when there is one."""
    dtype: str = "auto"
    """On a GPU bf16, fp8 or mxfp8 (auto: fp8 where the GPU multiplies in it); on a CPU fp32."""
    kv_dtype: str = "auto"
    """Of keys and values on a GPU: bf16, fp8 in half the memory, or auto."""
    slots: int | None = None
    """Turns that speak at once. None: what suits the device."""
    pages: int | None = None
    """KV pages; the runner's own choice when not given."""
    voices_dir: Path | None = None
    """The voice store. None: no store, only references sent along."""
    warm_voice_bytes: int | None = None
    """The host's memory, pinned for a GPU, for KV of voices that the device lets go; 0: none. None:
    what suits device and machine."""
    codes_bytes: int = 64 << 20
    """Codes and transcripts of prepared voices kept in the host's memory."""
    cold_voice_bytes: int = 256 << 20
    """Codes, kept on disk in ``voices_dir``, of recordings that came with a request; 0: none."""
    limits: Limits = field(default_factory=Limits)
