"""Codes to sound for many streams at once, exactly; and both directions for whole recordings.

Owns the calls that the engine makes and their argument checks. A :class:`StreamDecoder` belongs to
the codec's thread; the two functions may run on any thread, each call with a state of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from .decoder import Decoder
from .load import Codec
from .state import StreamState

if TYPE_CHECKING:
    from .device_streams import DeviceStreams

# What one call of the network takes at once when a whole recording is given; bounds its memory.
_CHUNK_FRAMES = 32


class StreamDecoder:
    """Decodes up to ``max_slots`` streams; each slot remembers where its stream stopped.

    Any cut of a stream into calls gives the same samples (within 1e-5, float32 rounding), at a cost
    a frame that does not grow. Slots of one call may stand at different positions.
    """

    def __init__(self, codec: Codec, max_slots: int) -> None:
        self._codec = codec
        self._max_slots = max_slots
        with torch.inference_mode():
            self._state = _streams(codec, max_slots)

    @property
    def bytes_per_slot(self) -> int:
        return self._state.bytes_per_slot

    def decode(self, slots: Sequence[int], codes: Tensor, reset: Tensor) -> Tensor:
        """``slots``: B different slots. ``codes`` int [B, T, NQ], T >= 1. ``reset`` bool [B]: a new
        stream begins with these frames. Returns float32 [B, T * frame_samples] in -1 .. 1.

        Raises ValueError for arguments that do not fit each other or this codec.
        """
        rows = len(slots)
        if codes.ndim != 3 or codes.shape[0] != rows or codes.shape[2] != self._codec.codebooks:
            raise ValueError(
                f"codes must be [{rows}, frames, {self._codec.codebooks}], not {list(codes.shape)}"
            )
        if reset.shape != (rows,) or reset.dtype != torch.bool:
            raise ValueError(f"reset must be bool [{rows}]")
        if rows == 0 or codes.shape[1] == 0:
            raise ValueError("nothing to decode")
        if len(set(slots)) != rows or min(slots) < 0 or max(slots) >= self._max_slots:
            raise ValueError(f"slots must be different and in 0 .. {self._max_slots - 1}")
        device = self._codec.device
        index = torch.tensor(slots, dtype=torch.int64, device=device)
        return self.decode_at(index, codes.to(device), reset.to(device))

    @torch.inference_mode()
    def decode_at(self, slots: Tensor, codes: Tensor, reset: Tensor) -> Tensor:
        """:meth:`decode` with ``slots`` int64 [B], all on the device; unchecked and without a wait
        for the device, so that it can be captured."""
        return self._state.run(slots, codes, reset)

    @torch.inference_mode()
    def pcm_at(self, slots: Tensor, codes: Tensor, reset: Tensor, out: Tensor) -> None:
        """``out`` int16 [B, T * frame_samples], contiguous <- :meth:`decode_at` times 32,767."""
        if isinstance(self._state, _TorchStreams):
            sound = self._state.run(slots, codes, reset)
            out.copy_((sound.float().clamp(-1.0, 1.0) * 32767.0).round())
        else:
            self._state.run_into(slots, codes, reset, out)


class _TorchStreams:
    """The decoding network in plain torch with the state of its streams."""

    def __init__(self, decoder: Decoder, max_slots: int, device: torch.device) -> None:
        self._decoder = decoder
        self._state = StreamState(decoder.plan, max_slots, device)

    @property
    def bytes_per_slot(self) -> int:
        return self._state.bytes_per_slot

    def run(self, slots: Tensor, codes: Tensor, reset: Tensor) -> Tensor:
        step = self._state.begin(slots, reset)
        samples = self._decoder(codes, step)
        self._state.commit(step, codes.shape[1])
        return samples


def _streams(codec: Codec, max_slots: int) -> _TorchStreams | DeviceStreams:
    if codec.decoder is not None:
        return _TorchStreams(codec.decoder, max_slots, codec.device)
    from .device_streams import DeviceStreams  # a CPU needs no Triton

    assert codec.network is not None
    return DeviceStreams(codec.network, max_slots, codec.device)


@torch.inference_mode()
def decode_codes(codec: Codec, codes: Tensor, chunk_frames: int = _CHUNK_FRAMES) -> Tensor:
    """int [T, NQ] -> float32 [T * frame_samples], a stream of its own."""
    decoder = StreamDecoder(codec, 1)
    reset = torch.ones(1, dtype=torch.bool)
    parts: list[Tensor] = []
    for chunk in codes[None].split(chunk_frames, 1):
        parts.append(decoder.decode((0,), chunk, reset)[0])
        reset = torch.zeros(1, dtype=torch.bool)
    return torch.cat(parts)


@torch.inference_mode()
def encode_codes(codec: Codec, samples: Tensor, chunk_frames: int = _CHUNK_FRAMES) -> Tensor:
    """float32 [N] mono at the codec's rate -> int32 [ceil(N / frame_samples), NQ], on the CPU.

    The last frame is filled up with silence. Raises ValueError for anything but one axis of at
    least one sample.
    """
    if samples.ndim != 1 or samples.numel() == 0:
        raise ValueError(f"samples must be one axis of at least one, not {list(samples.shape)}")
    frame = codec.frame_samples
    padded = F.pad(samples.to(codec.device, torch.float32), (0, -samples.numel() % frame))
    state = StreamState(codec.encoder.plan, 1, codec.device)
    slot = torch.zeros(1, dtype=torch.int64, device=codec.device)
    keep = torch.zeros(1, dtype=torch.bool, device=codec.device)
    parts: list[Tensor] = []
    for chunk in padded[None].split(chunk_frames * frame, 1):
        step = state.begin(slot, keep)
        parts.append(codec.encoder(chunk.contiguous(), step)[0].cpu())
        state.commit(step, chunk.shape[1] // frame)
    return torch.cat(parts)
