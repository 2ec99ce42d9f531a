"""Tails of streams, moved into a workspace and back, against plain indexing."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.kernels.tails import TailPlace, load_tails, save_tails, tail_table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS = 9
ROWS = 6


def places(channels: int) -> tuple[list[TailPlace], list[tuple[int, int]], int, int]:
    """Two layers: 700 steps behind 3 new ones, and 2 behind 5. Their places, each one's steps of
    the past and new, and the values of a slot and of the workspace."""
    layers = [(700, 3), (2, 5)]
    found: list[TailPlace] = []
    flat = used = 0
    for past, length in layers:
        row = (past + length) * channels
        found.append(TailPlace(flat, past * channels, used, row, length * channels))
        flat += past * channels
        used += ROWS * row
    return found, layers, flat, used


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).half().to(DEVICE)


@pytest.mark.parametrize(("channels", "grain"), [(8, 8), (12, 4), (3, 1)])
def test_tails_go_in_front_of_new_steps_and_come_back(channels: int, grain: int) -> None:
    found, layers, width, used = places(channels)
    table = tail_table(found, DEVICE)
    assert table.grain == grain
    flat, work = drawn(SLOTS, width), drawn(used)
    kept, new = flat.clone(), work.clone()
    slots = torch.tensor([4, 0, 8, 2, 1, 7], device=DEVICE)
    reset = torch.tensor([False, True, False, False, True, False], device=DEVICE)
    load_tails(flat, work, table, slots, reset)
    assert torch.equal(flat, kept)
    expected = kept.clone()
    for place, (past, length) in zip(found, layers, strict=True):
        end = place.buffer + ROWS * place.row
        rows, before = (w[place.buffer : end].view(ROWS, past + length, channels)
                        for w in (work, new))  # fmt: skip
        tails = kept[slots, place.start : place.start + place.count].view(ROWS, past, channels)
        assert torch.equal(rows[:, :past], tails * ~reset[:, None, None])
        assert torch.equal(rows[:, past:], before[:, past:])
        expected[slots, place.start : place.start + place.count] = rows[:, length:].flatten(1)
    filled = work.clone()
    save_tails(flat, work, table, slots)
    assert torch.equal(work, filled)
    assert torch.equal(flat, expected)
    assert not torch.equal(flat, kept)
