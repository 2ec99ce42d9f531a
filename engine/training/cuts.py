"""What the codec is trained on: short cuts of the speech, drawn at random, on the device.

All of the speech lies there as int16 (5 GB for 30 hours), so that no step waits for a disk.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .critics import SPEAKERS
from .speech import FRAME, FRAMES_PER_CODE, Speech

HELD_OUT = 64
"""Utterances at the start of the speech that are never trained on."""


class Cuts:
    """Random cuts of the training part, on the device: audio [B, 1, N], phonemes [B, 2 T],
    speakers [B]."""

    def __init__(
        self,
        speech: Speech,
        labels: npt.NDArray[np.uint8],
        device: torch.device,
        *,
        batch: int,
        frames: int,
    ) -> None:
        """``batch`` cuts of ``frames`` code frames at a time.

        Raises ValueError when no utterance is that long.
        """
        held = min(HELD_OUT, len(speech) // 10)
        long = speech.frames >= FRAMES_PER_CODE * frames + 2
        chosen = np.flatnonzero(long & (np.arange(len(speech)) >= held))
        if not len(chosen):
            raise ValueError("no utterance is as long as a cut")
        self._start = torch.from_numpy(speech.start[chosen]).to(device)
        self._count = torch.from_numpy(speech.frames[chosen]).to(device)
        self._audio = _on_device(speech.audio, device)
        self._labels = torch.from_numpy(labels).to(device)
        self._speaker = torch.from_numpy(speech.speaker[chosen] % SPEAKERS).to(device)
        self._chance = (self._count.double() / self._count.sum()).cumsum(0)
        self._batch, self._frames, self._device = batch, FRAMES_PER_CODE * frames, device

    def __call__(self) -> tuple[Tensor, Tensor, Tensor]:
        batch, frames, device = self._batch, self._frames, self._device
        point = torch.rand(batch, device=device, dtype=torch.double)
        chosen = torch.searchsorted(self._chance, point).clamp(max=len(self._chance) - 1)
        room = self._count[chosen] - frames
        offset = torch.minimum((torch.rand(batch, device=device) * (room + 1)).long(), room)
        # The codec has to begin well: a quarter of the cuts are beginnings.
        offset = offset * (torch.rand(batch, device=device) >= 0.25)
        first = self._start[chosen] + offset
        sample = torch.arange(frames * FRAME, device=device)
        audio = self._audio[first[:, None] * FRAME + sample].float() / 32768
        audio = audio * (torch.rand(batch, 1, device=device) * 0.7 + 0.5)
        labels = self._labels[first[:, None] + torch.arange(frames, device=device)]
        return audio[:, None].clamp(-1, 1), labels.long(), self._speaker[chosen]


def _on_device(audio: npt.NDArray[np.int16], device: torch.device, chunk: int = 1 << 28) -> Tensor:
    """A copy of mapped samples on the device, in pieces, so that memory holds them once."""
    whole = torch.empty(len(audio), dtype=torch.int16, device=device)
    for begin in range(0, len(audio), chunk):
        part = np.array(audio[begin : begin + chunk])
        whole[begin : begin + len(part)] = torch.from_numpy(part).to(device)
    return whole
