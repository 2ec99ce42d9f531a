"""What a codec stream remembers between calls, for all slots at once.

Owns two kinds of memory, both sized once: *tails*, the last inputs of every convolution, laid out
side by side in one flat row a slot; and *rings*, the last keys and values of every attention
layer, addressed by slot and by position modulo the window. No state lives in Python objects per
slot, so that one call is a fixed list of tensor operations whatever its slots have been through.
Knows nothing of what the numbers mean. One thread: the codec's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tail:
    """Where the last ``rows`` inputs [rows, channels] of one layer lie in a slot's flat row."""

    start: int
    rows: int
    channels: int

    def of(self, flat: Tensor) -> Tensor:
        """The view [B, rows, channels] of ``flat`` [B, floats]."""
        return flat.as_strided(
            (flat.shape[0], self.rows, self.channels),
            (flat.stride(0), self.channels, 1),
            flat.storage_offset() + self.start,
        )


@dataclass(frozen=True, slots=True)
class Ring:
    """Which ring belongs to one transformer: its place in ``StatePlan.rings``."""

    index: int


class StatePlan:
    """Counts what the layers of a network need while they are built."""

    def __init__(self) -> None:
        self.floats = 0
        self.rings: list[tuple[int, int, int]] = []

    def tail(self, rows: int, channels: int) -> Tail:
        """Reserve the last ``rows`` inputs of a layer."""
        tail = Tail(self.floats, rows, channels)
        self.floats += rows * channels
        return tail

    def ring(self, layers: int, window: int, width: int) -> Ring:
        """Reserve keys and values [layers, 2, slots, window, width]."""
        self.rings.append((layers, window, width))
        return Ring(len(self.rings) - 1)


@dataclass(frozen=True, slots=True)
class Step:
    """One call's view of the state: ``before`` is read, ``after`` is filled by the layers.

    ``slots`` int64 [B]; ``position`` int64 [B], frames that each stream has behind it; ``before``
    and ``after`` float [B, floats]; ``rings`` the whole pools, written in place.
    """

    slots: Tensor
    position: Tensor
    before: Tensor
    after: Tensor
    rings: tuple[Tensor, ...]


class StreamState:
    """State of ``max_slots`` streams. A slot that was never reset is a stream at its start."""

    def __init__(self, plan: StatePlan, max_slots: int, device: torch.device) -> None:
        self._position = torch.zeros(max_slots, dtype=torch.int64, device=device)
        self._tails = torch.zeros(max_slots, plan.floats, device=device)
        self._rings = tuple(
            torch.zeros(layers, 2, max_slots, window, width, device=device)
            for layers, window, width in plan.rings
        )

    @property
    def bytes_per_slot(self) -> int:
        numel = self._tails.numel() + sum(ring.numel() for ring in self._rings)
        return 4 * numel // len(self._position) + 8

    def begin(self, slots: Tensor, reset: Tensor) -> Step:
        """``slots`` int64 [B], all different; ``reset`` bool [B]: forget the stream first.

        A ring needs no clearing: what lies before a stream's position 0 is never looked at.
        """
        position = self._position.index_select(0, slots).masked_fill_(reset, 0)
        before = self._tails.index_select(0, slots).masked_fill_(reset[:, None], 0.0)
        return Step(slots, position, before, torch.empty_like(before), self._rings)

    def commit(self, step: Step, frames: int) -> None:
        """Make what the layers left in ``step`` the slots' state, ``frames`` later."""
        self._tails.index_copy_(0, step.slots, step.after)
        self._position.index_copy_(0, step.slots, step.position + frames)
