"""Attention kernels against plain torch: paged decode, shared prefix, prefill."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.kernels.extend import extend_attention
from shoal.kernels.heads import heads_reference, store_heads
from shoal.kernels.kv import gather_pages
from shoal.kernels.pages import attention_reference, cut_on_host
from shoal.kernels.quantise import Fp8Rows, dequantise_rows
from tests.attention import (
    DEVICE,
    EPS,
    PAGE,
    groups_of,
    laid_out,
    make_heads,
    make_step,
    random,
    relative,
    shared,
    sharing,
)

pytestmark = pytest.mark.usefixtures("compiling_ahead")


@pytest.mark.parametrize(
    ("positions", "qk_norm", "parts", "normed"),
    [([0, 31, 32, 70, 300], True, 4, True), ([1, 127, 200], False, 1, False)],
)
def test_paged_decode(positions: list[int], qk_norm: bool, parts: int, normed: bool) -> None:
    step = make_step(positions, qk_norm=qk_norm, parts=parts, normed=normed)
    out = step.run()
    # What e4m3 with a scale a head costs.
    assert relative(dequantise_rows(out), step.expected()) < 0.032


def test_paged_decode_of_small_heads_in_bf16() -> None:
    step = make_step([3, 150, 0], dim=64, parts=1, normed=False)
    out = step.run()
    assert relative(out.values, step.expected()) < 5e-3


def test_what_lies_behind_the_end_of_a_page_is_not_seen() -> None:
    step = make_step([70, 40])
    clean = step.rows([0, 1]).run()
    for row, position in enumerate(step.positions.tolist()):
        page = step.tables[step.slots[row], position // PAGE]
        step.keys[page, :, position % PAGE :] = float("nan")
        step.values[page, :, position % PAGE :] = float("nan")
    assert torch.equal(step.run().values.float(), clean.values.float())


def test_bits_of_a_decoded_row_do_not_depend_on_its_neighbours() -> None:
    step = make_step([5, 300, 64, 131])
    full = step.rows([0, 1, 2, 3]).run()
    for chosen in ([1], [3, 1], [2]):
        out = step.rows(chosen).run()
        assert torch.equal(out.values.float(), full.values[chosen].float())
        assert torch.equal(out.scales, full.scales[:, chosen])


@pytest.mark.parametrize("position", [40, 300, 1023, 1300, 2060])
def test_how_many_stretches_a_program_serves_changes_no_bit(position: int) -> None:
    """One stretch, two, four, six, and six of twice the length."""
    step = make_step([position, 5], pages=80)
    apart, together = (step.rows([0, 1]).run(together=t) for t in (False, True))
    assert torch.equal(apart.values.float(), together.values.float())
    assert torch.equal(apart.scales, together.scales)
    checked = step.rows([0, 1])
    assert relative(dequantise_rows(checked.run()), checked.expected()) < 0.032


@pytest.mark.parametrize("pages", [3, 9, 33])
def test_a_shared_prefix_changes_no_bit_of_programs_of_many_stretches(pages: int) -> None:
    positions = [pages * PAGE + 1, pages * PAGE + 40, 70]
    step = shared(make_step(positions, pages=80), pages, rows=2)
    prefix = sharing([pages * PAGE] * 2 + [0], positions)
    expected = step.rows([0, 1, 2]).run(together=False)
    out = step.rows([0, 1, 2]).run(prefix, groups_of([[0, 1]]), together=True)
    assert torch.equal(out.values.float(), expected.values.float())
    assert torch.equal(out.scales, expected.scales)


@pytest.mark.parametrize("pages", [1, 5, 8, 9])
def test_a_shared_prefix_is_read_once_and_changes_no_bit(pages: int) -> None:
    """Prefixes that end within a stretch, with one, and behind one; a row of nothing else."""
    positions = [pages * PAGE, pages * PAGE + 1, 300, 290, 180]
    step = shared(make_step(positions), pages, rows=4)
    tokens = [pages * PAGE] * 4 + [0]
    plain = step.rows([0, 1, 2, 3, 4])
    expected = plain.run()
    together = step.rows([0, 1, 2, 3, 4])
    prefix = sharing(tokens, positions)
    out = together.run(prefix, groups_of([[0, 1, 2, 3], []]))
    assert torch.equal(out.values.float(), expected.values.float())
    assert torch.equal(out.scales, expected.scales)
    assert relative(dequantise_rows(out), together.expected()) < 0.032
    split = step.rows([0, 1, 2, 3, 4]).run(prefix, groups_of([[0, 2], [3], [1]]))
    assert torch.equal(split.values.float(), expected.values.float())
    for row in (0, 2, 4):
        alone = step.rows([row]).run(prefix[[row]], groups_of([[0] if tokens[row] else []]))
        assert torch.equal(alone.values.float(), expected.values[[row]].float())
        assert torch.equal(alone.scales, expected.scales[:, [row]])


def test_a_group_reads_its_prefix_and_rows_go_on_from_it() -> None:
    """With another prefix in the group's table than in the row's own, the group's shows."""
    positions = [2 * PAGE + 3, 2 * PAGE + 9]
    step = make_step(positions)
    whole = shared(step, 2, rows=2).rows([0, 1]).run()
    lied_to = step.rows([0, 1]).run(sharing([2 * PAGE] * 2, positions), groups_of([[0, 1]]))
    assert torch.equal(lied_to.values.float(), whole.values.float())
    assert not torch.equal(step.rows([0, 1]).run().values.float(), whole.values.float())


def test_a_row_that_is_not_what_the_host_took_it_for_is_left_to_itself() -> None:
    positions = [3 * PAGE + 5, 3 * PAGE - 1, 3 * PAGE + 7]
    step = shared(make_step(positions), 3, rows=1)
    expected = step.rows([0, 1, 2]).run()
    prefix = sharing([3 * PAGE] * 3, positions)
    prefix[2, 1] = 2  # as though it were long
    out = step.rows([0, 1, 2]).run(prefix, groups_of([[0, 1, 2]]))
    assert torch.equal(out.values.float(), expected.values.float())
    assert torch.equal(out.scales, expected.scales)


def test_a_long_context_is_cut_into_longer_stretches() -> None:
    assert [cut_on_host(n) for n in (1, 2048, 2049, 4096, 4097)] == [1, 1, 2, 2, 3]
    step = make_step([2047, 2051], pages=160)
    out = step.rows([0, 1])
    assert relative(dequantise_rows(out.run()), out.expected()) < 0.032


@pytest.mark.parametrize("dim", [64, 128])
def test_prefill_in_chunks_is_causal_attention(dim: int) -> None:
    heads = make_heads(dim, qk_norm=True)
    table = torch.tensor([[7, 3, 11, 0]], dtype=torch.int32, device=DEVICE)
    total, cut = 100, 37
    qkv = random(1, total, 12 * dim, seed=8).bfloat16()
    keys, values = (torch.zeros(12, 2, PAGE, dim, device=DEVICE).bfloat16() for _ in "kv")
    keys.fill_(float("nan"))
    values.fill_(float("nan"))
    rows = []
    for start, end in ((0, cut), (cut, total)):
        part = qkv[:, start:end].contiguous()
        queries = torch.empty(end - start, 8, dim, dtype=torch.bfloat16, device=DEVICE)
        weights = (heads.query_weight, heads.key_weight)
        tiles = laid_out((start, end - start), rows=end - start)
        store_heads(part, None, weights, heads.rope, table, keys, values, queries, EPS, tiles=tiles)
        out = torch.full((end - start, 8 * dim), float("nan"), device=DEVICE).bfloat16()
        extend_attention(queries, heads, keys, values, table, tiles, out)
        rows.append(out)
        if dim == 128:
            quantised = Fp8Rows.empty(end - start, 8 * dim, DEVICE)
            extend_attention(queries, heads, keys, values, table, tiles, quantised)
            assert relative(dequantise_rows(quantised), out) < 0.032
    x = qkv[0].view(total, 12, dim)
    at = torch.arange(total, device=DEVICE)
    q = heads_reference(x[:, :8], heads.query_weight, heads.rope, at, EPS)
    k = heads_reference(x[:, 8:10], heads.key_weight, heads.rope, at, EPS)
    assert relative(gather_pages(keys, table[0], total), k) < 2e-3
    assert torch.equal(gather_pages(values, table[0], total), x[:, 10:])
    expected = attention_reference(q, k, x[:, 10:], 0).flatten(1)
    assert relative(torch.cat(rows), expected) < 5e-3


def test_chunks_side_by_side_are_what_they_are_alone() -> None:
    """Three contexts in a buffer with room to spare: nothing else is written."""
    heads = make_heads(128, qk_norm=True)
    tables = torch.tensor([[7, 3, 9], [2, 0, 9], [5, 9, 9]], dtype=torch.int32, device=DEVICE)
    spans = [(20, 37), (33, 12), (0, 32)]
    starts = [0, 64, 96]
    rows = 160
    qkv = random(2, rows, 12 * 128, seed=8)
    weights = (heads.query_weight, heads.key_weight)

    def run(
        which: torch.Tensor, part: torch.Tensor, tiles: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        keys, values = (random(12, 2, PAGE, 128, seed=s).bfloat16() for s in (3, 4))
        queries = torch.full((part.shape[1], 8, 128), 7.0, dtype=torch.bfloat16, device=DEVICE)
        out = torch.full((part.shape[1], 8 * 128), 7.0, device=DEVICE).bfloat16()
        pages = (which, keys, values)
        store_heads(part, None, weights, heads.rope, *pages, queries, EPS, tiles=tiles)
        extend_attention(queries, heads, keys, values, which, tiles, out)
        return keys, values, queries, out

    together = run(tables, qkv, laid_out(*spans, rows=rows))
    alone = [
        run(
            tables[[context]],
            qkv[:, starts[context] : starts[context] + spans[context][1]].contiguous(),
            laid_out(spans[context], rows=spans[context][1]),
        )
        for context in range(3)
    ]
    rest = torch.ones(rows, dtype=torch.bool)
    for context, (begin, count) in enumerate(spans):
        at = slice(starts[context], starts[context] + count)
        rest[at] = False
        for all_rows, own in zip(together[2:], alone[context][2:], strict=True):
            assert torch.equal(all_rows[at], own)
        for position in range(begin, begin + count):
            page, offset = int(tables[context, position // PAGE]), position % PAGE
            for pages, own in zip(together[:2], alone[context][:2], strict=True):
                assert torch.equal(pages[page, :, offset], own[page, :, offset])
    assert all((part[rest] == 7).all() for part in together[2:])
    untouched = random(12, 2, PAGE, 128, seed=3).bfloat16()
    changed = (together[0] != untouched).any(dim=(1, 3))
    assert int(changed.sum()) == sum(count for _, count in spans)
    with pytest.raises(ValueError, match="tiles"):
        store_heads(
            qkv, None, weights, heads.rope, tables, together[0], together[1], together[2], EPS
        )


def test_pages_and_heads_that_do_not_fit_are_refused() -> None:
    step = make_step([3])
    with pytest.raises(ValueError, match="multiple of 32"):
        replace(step, keys=step.keys[:, :, :30], values=step.values[:, :, :30]).run()
    heads = make_heads(64, False)
    out = Fp8Rows.empty(1, 512, DEVICE)
    pages = torch.zeros(2, 2, 32, 64, dtype=torch.bfloat16, device=DEVICE)
    queries = torch.zeros(1, 8, 64, dtype=torch.bfloat16, device=DEVICE)
    with pytest.raises(ValueError, match="no quantisation group"):
        extend_attention(queries, heads, pages, pages, step.tables, laid_out((0, 1), rows=1), out)
