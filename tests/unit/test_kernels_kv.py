"""Attention over FP8 pages: what is stored, what is read, and that its bits are fixed."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.kernels.extend import extend_attention
from shoal.kernels.heads import heads_reference, store_heads
from shoal.kernels.kv import (
    Fp8Pages,
    check_pages,
    dequantise_heads,
    gather_pages,
    gather_wide,
    quantise_heads,
)
from shoal.kernels.pages import attention_reference, fp8_attention_reference
from shoal.kernels.quantise import Fp8Rows, dequantise_rows
from tests.attention import (
    DEVICE,
    EPS,
    PAGE,
    Step,
    groups_of,
    laid_out,
    magnitudes,
    make_heads,
    make_step,
    random,
    relative,
    shared,
    sharing,
)


def fp8_step(positions: list[int], dim: int = 128, pages: int = 48) -> Step:
    return make_step(positions, dim=dim, parts=1, normed=False, pages=pages, fp8=True)


def context(pages: Fp8Pages, table: torch.Tensor, tokens: int) -> Fp8Pages:
    """[tokens, kv heads, D] of one context."""
    values = gather_pages(pages.values.view(torch.uint8), table, tokens).contiguous()
    return Fp8Pages(values.view(torch.float8_e4m3fn), gather_pages(pages.scales, table, tokens))


def emulated(step: Step) -> torch.Tensor:
    """bf16 rows [M, HQ D], kernel's roundings included, over pages that the step was run on."""
    h = step.heads
    x = step.qkv.float().sum(0).bfloat16().view(len(step.slots), -1, h.dim)
    at = step.positions.long()
    q = heads_reference(x[:, : h.queries], h.query_weight, h.rope, at, EPS)
    rows = []
    for i, position in enumerate(at.tolist()):
        assert isinstance(step.keys, Fp8Pages)
        assert isinstance(step.values, Fp8Pages)
        kept = (
            context(p, step.tables[step.slots[i]], position + 1) for p in (step.keys, step.values)
        )
        rows.append(fp8_attention_reference(q[i][None], *kept, position).flatten())
    return torch.stack(rows).bfloat16()


def test_quantised_heads_are_rounded_to_nearest_with_the_largest_at_the_top() -> None:
    x = random(7, 3, 128, seed=1).bfloat16() * magnitudes(7, 3, seed=2)
    kept = quantise_heads(x)
    assert relative(dequantise_heads(kept), x) < 0.03
    assert torch.equal(kept.values.float().abs().amax(-1), torch.full((7, 3), 448.0, device=DEVICE))
    grid = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(torch.float8_e4m3fn).float()
    grid = grid[grid.isfinite()]
    exact = x.float() * (448.0 / x.float().abs().amax(-1, keepdim=True))
    nearest = (exact[..., None] - grid).abs().amin(-1)
    assert ((kept.values.float() - exact).abs() <= nearest * 1.0001 + 1e-6).all()
    assert not quantise_heads(torch.zeros(1, 128, device=DEVICE)).values.float().any()


@pytest.mark.parametrize("dim", [64, 128])
def test_decode_computes_what_its_emulation_computes(dim: int) -> None:
    step = fp8_step([0, 31, 32, 70, 300], dim)
    out = step.run()
    got = dequantise_rows(out) if dim == 128 else out.values.float()
    # Also checks what was stored; the first is e4m3 of a head's outputs, the second their bf16.
    assert relative(got, step.expected()) < (0.032 if dim == 128 else 5e-3)
    if dim == 64:
        assert relative(out.values, emulated(step)) < 2e-3


def test_decode_is_close_to_attention_over_what_was_quantised() -> None:
    """Rows of one magnitude: what e4m3 keys and values cost, apart from e4m3 outputs."""
    wide = make_step([3, 150, 400], dim=64, parts=1, normed=False)
    assert isinstance(wide.keys, torch.Tensor)
    assert isinstance(wide.values, torch.Tensor)
    narrow = replace(wide, keys=quantise_heads(wide.keys), values=quantise_heads(wide.values))
    ours, theirs = narrow.run().values.float(), wide.run().values.float()
    assert relative(ours, theirs) < 0.05
    cosine = torch.nn.functional.cosine_similarity(ours, theirs, dim=-1)
    assert (cosine > 0.999).all()


def planted(step: Step, bug: str) -> Step:
    """The same step with scales that are not its own."""
    keys, values = step.keys, step.values
    assert isinstance(keys, Fp8Pages)
    assert isinstance(values, Fp8Pages)
    match bug:
        case "swapped":
            scales = (values.scales, keys.scales)
        case "another token's":
            scales = (keys.scales.roll(1, 2), values.scales)
        case "another token's value":
            scales = (keys.scales, values.scales.roll(1, 2))
        case _:
            scales = (keys.scales.roll(1, 1), values.scales.roll(1, 1))
    pages = (Fp8Pages(keys.values, scales[0]), Fp8Pages(values.values, scales[1]))
    return replace(step, keys=pages[0], values=pages[1])


@pytest.mark.parametrize(
    "bug", ["swapped", "another token's", "another token's value", "another head's"]
)
def test_a_misread_scale_shows(bug: str) -> None:
    step = fp8_step([150, 400], 64)
    right = step.rows([0, 1])
    assert relative(right.run().values, right.expected()) < 5e-3
    wrong = planted(step, bug).rows([0, 1]).run().values
    assert relative(wrong, right.expected()) > 0.3


def test_what_lies_behind_the_end_of_fp8_pages_is_not_seen() -> None:
    step = fp8_step([70, 40])
    clean = step.rows([0, 1]).run()
    for row, position in enumerate(step.positions.tolist()):
        page = step.tables[step.slots[row], position // PAGE]
        for kept in (step.keys, step.values):
            assert isinstance(kept, Fp8Pages)
            kept.values.view(torch.uint8)[page, :, position % PAGE :] = 0x7F
            kept.scales[page, :, position % PAGE :] = float("nan")
    assert torch.equal(step.run().values.float(), clean.values.float())


def same(ours: Fp8Rows, theirs: Fp8Rows, rows: list[int]) -> bool:
    values = torch.equal(ours.values.float(), theirs.values[rows].float())
    return values and torch.equal(ours.scales, theirs.scales[:, rows])


def test_bits_of_a_row_over_fp8_pages_do_not_depend_on_its_neighbours() -> None:
    step = fp8_step([5, 300, 64, 131])
    full = step.rows([0, 1, 2, 3]).run()
    for chosen in ([1], [3, 1], [2]):
        assert same(step.rows(chosen).run(), full, chosen)
    assert same(step.rows([0, 1, 2, 3]).run(together=True), full, [0, 1, 2, 3])


@pytest.mark.parametrize("pages", [1, 9, 33])
def test_a_shared_prefix_of_fp8_pages_changes_no_bit(pages: int) -> None:
    positions = [pages * PAGE + 1, pages * PAGE + 40, 70]
    step = shared(fp8_step(positions, pages=80), pages, rows=2)
    prefix = sharing([pages * PAGE] * 2 + [0], positions)
    expected = step.rows([0, 1, 2]).run(together=False)
    for together in (False, True):
        out = step.rows([0, 1, 2]).run(prefix, groups_of([[0, 1]]), together=together)
        assert same(out, expected, [0, 1, 2])


@pytest.mark.parametrize("dim", [64, 128])
def test_prefill_over_fp8_pages_in_chunks_is_causal_attention(dim: int) -> None:
    heads = make_heads(dim, qk_norm=True)
    table = torch.tensor([[7, 3, 11, 0]], dtype=torch.int32, device=DEVICE)
    total, cut = 100, 37
    qkv = random(1, total, 12 * dim, seed=8) * magnitudes(1, total, seed=9)
    qkv = qkv.bfloat16()
    keys, values = (quantise_heads(torch.zeros(12, 2, PAGE, dim, device=DEVICE)) for _ in "kv")
    for pages in (keys, values):
        pages.values.view(torch.uint8).fill_(0x7F)
        pages.scales.fill_(float("nan"))
    rows = []
    queries = torch.empty(total, 8, dim, dtype=torch.bfloat16, device=DEVICE)
    for start, end in ((0, cut), (cut, total)):
        part = qkv[:, start:end].contiguous()
        weights = (heads.query_weight, heads.key_weight)
        tiles = laid_out((start, end - start), rows=end - start)
        kept = (table, keys, values, queries[start:end])
        assert weights[0] is not None
        assert weights[1] is not None
        store_heads(part, None, (weights[0], weights[1]), heads.rope, *kept, EPS, tiles=tiles)
        out = torch.full((end - start, 8 * dim), float("nan"), device=DEVICE).bfloat16()
        extend_attention(queries[start:end], heads, keys, values, table, tiles, out)
        rows.append(out)
    x = qkv[0].view(total, 12, dim)
    at = torch.arange(total, device=DEVICE)
    q = heads_reference(x[:, :8], heads.query_weight, heads.rope, at, EPS)
    k = heads_reference(x[:, 8:10], heads.key_weight, heads.rope, at, EPS)
    stored = [context(pages, table[0], total) for pages in (keys, values)]
    # Values pass the store as they are: to the bit. Keys were normed and turned in another order.
    wanted = quantise_heads(x[:, 10:])
    assert torch.equal(stored[1].values.float(), wanted.values.float())
    assert torch.equal(stored[1].scales, wanted.scales)
    assert relative(dequantise_heads(stored[0]), dequantise_heads(quantise_heads(k))) < 5e-3
    emulation = fp8_attention_reference(q, stored[0], stored[1], 0).flatten(1)
    assert relative(torch.cat(rows), emulation.bfloat16()) < 3e-3
    unquantised = attention_reference(q, k, x[:, 10:], 0).flatten(1)
    assert relative(torch.cat(rows), unquantised) < 0.06


def test_the_emulation_is_attention_over_what_the_pages_stand_for() -> None:
    step = fp8_step([200], 64)
    assert isinstance(step.keys, Fp8Pages)
    assert isinstance(step.values, Fp8Pages)
    table = step.tables[step.slots[0]]
    kept = [context(pages, table, 200) for pages in (step.keys, step.values)]
    q = random(4, 8, 64, seed=3).bfloat16()
    wide = [gather_wide(pages, table, 200) for pages in (step.keys, step.values)]
    exact = attention_reference(q, wide[0], wide[1], 196)
    assert relative(fp8_attention_reference(q, kept[0], kept[1], 196), exact) < 1e-3


def test_small_values_keep_their_precision_and_large_ones_do_not_overflow() -> None:
    """Probabilities times a value's scale pass through f16, whose range is small."""
    for size in (2.0**-10, 2.0**10):
        step = make_step([150, 290], dim=64, parts=1, normed=False, fp8=True)
        assert isinstance(step.values, Fp8Pages)
        values = Fp8Pages(step.values.values, step.values.scales * size)
        qkv = step.qkv.clone()
        qkv[..., -2 * 64 :] *= size
        step = replace(step, values=values, qkv=qkv)
        assert relative(step.run().values, step.expected()) < 5e-3


def test_pages_of_two_kinds_or_with_scales_of_another_shape_are_refused() -> None:
    pages = torch.zeros(2, 2, 32, 64, dtype=torch.bfloat16)
    narrow = quantise_heads(pages)
    assert check_pages(narrow, narrow, 2, 64)
    assert not check_pages(pages, pages, 2, 64)
    with pytest.raises(ValueError, match="one kind"):
        check_pages(pages, narrow, 2, 64)
    for scales in (narrow.scales[:1], narrow.scales.transpose(1, 2).contiguous().transpose(1, 2)):
        with pytest.raises(ValueError, match="scales"):
            check_pages(narrow, Fp8Pages(narrow.values, scales), 2, 64)
