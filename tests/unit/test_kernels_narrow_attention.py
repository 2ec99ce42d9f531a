"""Attention whose FP8 keys and values are multiplied unwidened: values, bits, what is stored."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.kernels.attention import decode_attention
from shoal.kernels.kv import Fp8Pages, gather_pages, gather_wide, quantise_heads
from shoal.kernels.narrow_attention import (
    NarrowQueries,
    narrow_attention,
    store_narrow,
    transposed,
)
from shoal.kernels.norm import NormedRows
from shoal.kernels.pages import Heads, Workspace, attention_reference, fp8_attention_reference
from shoal.kernels.quantise import Fp8Rows, dequantise_rows
from tests.attention import DEVICE, magnitudes, make_heads, random, relative

PAGE = 64


@dataclass
class Narrow:
    """A step of M rows over random pages; values as ``kv`` has them, transposed when it is run."""

    heads: Heads
    keys: Fp8Pages
    values: Fp8Pages
    tables: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    qkv: torch.Tensor
    normed: NormedRows | None

    def rows(self, chosen: list[int]) -> Narrow:
        normed = self.normed
        if normed is not None:
            quantised = Fp8Rows(normed.rows.values[chosen], normed.rows.scales[:, chosen])
            normed = NormedRows(quantised, normed.squares[:, chosen].contiguous())
        return replace(
            self,
            keys=Fp8Pages(self.keys.values.clone(), self.keys.scales.clone()),
            values=Fp8Pages(self.values.values.clone(), self.values.scales.clone()),
            slots=self.slots[chosen],
            positions=self.positions[chosen],
            qkv=self.qkv[:, chosen].contiguous(),
            normed=normed,
        )

    def buffers(self) -> tuple[Workspace, torch.Tensor]:
        m = len(self.slots)
        work = Workspace.empty(m, self.heads, DEVICE)
        work.outputs.fill_(float("nan"))
        work.sums.fill_(float("nan"))
        shape = (m, self.heads.queries * self.heads.dim)
        return work, torch.full(shape, float("nan"), dtype=torch.bfloat16, device=DEVICE)

    def run(self, together: bool = False, values: Fp8Pages | None = None) -> torch.Tensor:
        """bf16 [M, HQ D]."""
        work, out = self.buffers()
        self._run(work, out, together, values or transposed(self.values))
        return out

    def run_quantised(self) -> Fp8Rows:
        work, out = self.buffers()
        rows = Fp8Rows.empty(*out.shape, DEVICE)
        self._run(work, rows, False, transposed(self.values))
        return rows

    def _run(
        self, work: Workspace, out: torch.Tensor | Fp8Rows, together: bool, values: Fp8Pages
    ) -> None:
        where = (self.keys, values, self.tables, self.slots, self.positions)
        queries = NarrowQueries.empty(len(self.slots), self.heads, DEVICE)
        store_narrow(self.qkv, self.normed, self.heads, *where, queries)
        narrow_attention(self.heads, *where, queries, work, out, together=together)
        assert not work.arrived.any()

    def run_wide(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the attention in use computes, bf16 [M, HQ D], and the queries [M, HQ, D]; writes
        the new tokens to the pages."""
        work, out = self.buffers()
        where = (self.keys, self.values, self.tables, self.slots, self.positions)
        decode_attention(self.qkv, self.normed, self.heads, *where, work, out)
        return out, work.queries


def make(positions: list[int], normed: bool = False) -> Narrow:
    """Tokens and heads differ in magnitude, so that a misread scale shows."""
    m, heads = len(positions), make_heads(128, qk_norm=True)
    counts = [position // PAGE + 1 for position in positions]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(5)).int()
    tables = torch.zeros(m + 1, max(counts), dtype=torch.int32)
    for row, count in enumerate(counts):
        tables[m - row, :count] = order[sum(counts[:row]) :][:count]
    shape = (sum(counts), heads.keys, PAGE)
    keys, values = (
        quantise_heads(random(*shape, 128, seed=s).bfloat16() * magnitudes(*shape, seed=s + 5))
        for s in (3, 4)
    )
    rows = None
    if normed:
        rows = NormedRows.empty(m, 256, DEVICE)
        rows.squares.copy_(random(2, m, seed=6).abs() * 256)
    width = (heads.queries + 2 * heads.keys) * 128
    return Narrow(
        heads,
        keys,
        values,
        tables.to(DEVICE),
        torch.tensor([m - row for row in range(m)], dtype=torch.int32, device=DEVICE),
        torch.tensor(positions, dtype=torch.int32, device=DEVICE),
        random(2, m, width, seed=7) if normed else random(1, m, width, seed=7).bfloat16(),
        rows,
    )


def emulated(step: Narrow, queries: torch.Tensor) -> torch.Tensor:
    """bf16 [M, HQ D] by plain torch over the pages as they are."""
    rows = []
    for i, position in enumerate(step.positions.tolist()):
        table = step.tables[step.slots[i]]
        kept = []
        for pages in (step.keys, step.values):
            raw = gather_pages(pages.values.view(torch.uint8), table, position + 1).contiguous()
            scales = gather_pages(pages.scales, table, position + 1)
            kept.append(Fp8Pages(raw.view(pages.values.dtype), scales))
        rows.append(fp8_attention_reference(queries[i][None], *kept, position).flatten())
    return torch.stack(rows).bfloat16()


@pytest.mark.parametrize("normed", [False, True])
def test_it_computes_what_plain_torch_computes_and_stores_what_is_stored_today(
    normed: bool,
) -> None:
    step = make([0, 63, 64, 200, 300], normed)
    wide = step.rows([0, 1, 2, 3, 4])
    theirs, queries = wide.run_wide()
    narrow = step.rows([0, 1, 2, 3, 4])
    values = transposed(narrow.values)
    ours = narrow.run(values=values)
    expected = emulated(wide, queries)
    assert relative(ours, expected) < 2e-3
    assert relative(ours, theirs) < 2e-3
    plain = step.rows([0, 1, 2, 3, 4])
    assert relative(plain.run(values=plain.values), expected) < 2e-3
    kept = (
        (narrow.keys, wide.keys),
        (values, transposed(wide.values)),
        (plain.keys, wide.keys),
        (plain.values, wide.values),
    )
    for got, wanted in kept:
        assert torch.equal(got.values.view(torch.uint8), wanted.values.view(torch.uint8))
        assert torch.equal(got.scales, wanted.scales)


def test_each_of_its_rows_is_as_close_as_bf16_is() -> None:
    step = make([5, 130])
    wide = step.rows([0, 1])
    _, queries = wide.run_wide()
    ours, expected = step.rows([0, 1]).run().float(), emulated(wide, queries).float()
    heads = (2, step.heads.queries, 128)
    worst = (ours - expected).view(heads).abs().amax(-1) / expected.view(heads).abs().amax(-1)
    assert (worst < 8e-3).all()


def test_tokens_may_differ_in_magnitude_as_much_as_bf16_lets_them() -> None:
    step = make([200, 90])
    _, queries = step.rows([0, 1]).run_wide()
    draw = torch.Generator().manual_seed(11)
    far = torch.exp2(torch.randint(-40, 40, step.values.scales.shape, generator=draw).float())
    step.values.scales.mul_(far.to(DEVICE))
    narrow = step.rows([0, 1])
    values = transposed(narrow.values)
    ours = narrow.run(values=values)
    raw = values.values.view(torch.uint8).transpose(3, 4).reshape(narrow.values.values.shape)
    stored = Fp8Pages(raw.view(values.values.dtype), values.scales)
    rows = []
    for i, position in enumerate(step.positions.tolist()):
        table = step.tables[step.slots[i]]
        kept = (gather_wide(pages, table, position + 1) for pages in (narrow.keys, stored))
        rows.append(attention_reference(queries[i][None], *kept, position).flatten())
    assert relative(ours, torch.stack(rows)) < 4e-3


def test_its_quantised_rows_are_its_bf16_rows_quantised() -> None:
    step = make([70, 290])
    quantised = step.rows([0, 1]).run_quantised()
    assert relative(dequantise_rows(quantised), step.rows([0, 1]).run()) < 0.032


@pytest.mark.parametrize("bug", ["swapped", "another token's", "another head's"])
def test_a_misread_scale_shows(bug: str) -> None:
    step = make([150, 300])
    wide = step.rows([0, 1])
    _, queries = wide.run_wide()
    expected = emulated(wide, queries)
    by_key, by_value = step.keys.scales, step.values.scales
    match bug:
        case "swapped":
            scales = (by_value, by_key)
        case "another token's":
            scales = (by_key, by_value.roll(1, 2))
        case _:
            scales = (by_key.roll(1, 1), by_value)
    pages = (Fp8Pages(step.keys.values, scales[0]), Fp8Pages(step.values.values, scales[1]))
    wrong = replace(step, keys=pages[0], values=pages[1]).rows([0, 1]).run()
    assert relative(wrong, expected) > 0.2


def test_what_lies_behind_the_end_is_not_seen() -> None:
    step = make([70, 40])
    clean = step.rows([0, 1]).run()
    for row, position in enumerate(step.positions.tolist()):
        page = step.tables[step.slots[row], position // PAGE]
        first = position % PAGE
        step.keys.values.view(torch.uint8)[page, :, first:] = 0x7F
        step.values.values.view(torch.uint8)[page, :, first:] = 0x7F
        # Of values, to the end of the sixteen that are read together, anything that is finite.
        step.values.values.view(torch.uint8)[page, :, first : first // 16 * 16 + 16] = 0x7E
        for pages in (step.keys, step.values):
            pages.scales[page, :, position % PAGE :] = float("nan")
    assert torch.equal(step.run(), clean)


def test_bits_of_a_row_do_not_depend_on_its_neighbours_or_on_who_folds_its_stretches() -> None:
    step = make([5, 600, 64, 270])
    full = step.rows([0, 1, 2, 3]).run()
    assert full.isfinite().all()
    for chosen in ([1], [3, 1]):
        assert torch.equal(step.rows(chosen).run(), full[chosen])
    assert torch.equal(step.rows([0, 1, 2, 3]).run(together=True), full)
    plain = step.rows([0, 1, 2, 3])
    apart = plain.run(values=plain.values)
    assert torch.equal(plain.run(together=True, values=plain.values), apart)
    one = step.rows([1])
    assert torch.equal(one.run(values=one.values), apart[[1]])


def test_a_context_that_is_cut_in_longer_stretches_is_right() -> None:
    step = make([2100])
    wide = step.rows([0])
    _, queries = wide.run_wide()
    apart = step.rows([0]).run()
    assert relative(apart, emulated(wide, queries)) < 2e-3
    assert torch.equal(step.rows([0]).run(together=True), apart)


def test_heads_and_pages_that_it_cannot_serve_are_refused() -> None:
    step = make([5])
    with pytest.raises(ValueError, match="not four heads"):
        replace(step, heads=replace(step.heads, queries=16)).run()
