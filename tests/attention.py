"""What tests of attention kernels share: heads, steps over random pages, how rows share them.

Imported after the module that decides whether Triton interprets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from shoal.kernels.attention import decode_attention
from shoal.kernels.heads import heads_reference, rope_tables
from shoal.kernels.kv import Fp8Pages, Pages, dequantise_heads, gather_wide, quantise_heads
from shoal.kernels.norm import NormedRows
from shoal.kernels.pages import (
    TILE_TOKENS,
    Heads,
    Workspace,
    attention_reference,
    cut_on_host,
    tiles_of,
)
from shoal.kernels.quantise import Fp8Rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-6
PAGE = 32


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def make_heads(dim: int, qk_norm: bool, queries: int = 8, keys: int = 2) -> Heads:
    weights = [1 + 0.2 * random(dim, seed=s) for s in (1, 2)]
    return Heads(
        queries,
        keys,
        dim,
        EPS,
        rope_tables(2304, dim, 1e6, DEVICE),
        weights[0].bfloat16() if qk_norm else None,
        weights[1].bfloat16() if qk_norm else None,
    )


def copied(pages: Pages) -> Pages:
    if isinstance(pages, Fp8Pages):
        return Fp8Pages(pages.values.clone(), pages.scales.clone())
    return pages.clone()


def check_stored(pages: Pages, page: int, offset: int, expected: torch.Tensor) -> None:
    """That one token's heads [kv heads, D] are in their place."""
    if isinstance(pages, Fp8Pages):
        wanted = quantise_heads(expected)
        stored = Fp8Pages(pages.values[page, :, offset], pages.scales[page, :, offset])
        assert relative(dequantise_heads(stored), dequantise_heads(wanted)) < 5e-3
        assert relative(stored.scales, wanted.scales) < 2e-3
    else:
        assert relative(pages[page, :, offset], expected) < 2e-3


def magnitudes(*shape: int, seed: int) -> torch.Tensor:
    """Powers of two from an eighth to two, with a dimension of 1 behind ``shape``."""
    draw = torch.Generator().manual_seed(seed)
    return torch.exp2(torch.randint(-3, 2, (*shape, 1), generator=draw).float()).to(DEVICE)


@dataclass
class Step:
    """A decode step over random pages; slot s of the tables belongs to row ``slots.index(s)``."""

    heads: Heads
    keys: Pages
    values: Pages
    tables: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    qkv: torch.Tensor
    normed: NormedRows | None = None

    def rows(self, chosen: list[int]) -> Step:
        normed = self.normed
        if normed is not None:
            scales = Fp8Rows(normed.rows.values[chosen], normed.rows.scales[:, chosen])
            normed = NormedRows(scales, normed.squares[:, chosen].contiguous())
        return replace(
            self,
            keys=copied(self.keys),
            values=copied(self.values),
            slots=self.slots[chosen],
            positions=self.positions[chosen],
            qkv=self.qkv[:, chosen].contiguous(),
            normed=normed,
        )

    def run(
        self,
        prefix: torch.Tensor | None = None,
        groups: torch.Tensor | None = None,
        together: bool | None = None,
    ) -> Fp8Rows:
        m = len(self.slots)
        out = Fp8Rows.empty(m, self.heads.queries * self.heads.dim, DEVICE)
        quant = self.heads.dim == 128
        rows = torch.full_like(out.values, float("nan"), dtype=torch.bfloat16)
        work = Workspace.empty(m, self.heads, DEVICE)
        work.outputs.fill_(float("nan"))
        work.sums.fill_(float("nan"))
        where = (self.keys, self.values, self.tables, self.slots, self.positions)
        decode_attention(
            self.qkv,
            self.normed,
            self.heads,
            *where,
            work,
            out if quant else rows,
            prefix=prefix,
            groups=groups,
            together=together,
        )
        assert not work.arrived.any()
        return out if quant else Fp8Rows(rows, torch.empty(0))

    def expected(self) -> torch.Tensor:
        """bf16-rounded fp32 rows [M, HQ D] over the pages' values as they are; also checks what was
        written to the pages."""
        h = self.heads
        x = self.qkv.float().sum(0)
        if self.normed is not None:
            width = self.normed.rows.values.shape[1]
            x = x * torch.rsqrt(self.normed.squares.sum(0) / width + EPS)[:, None]
        x = x.bfloat16().view(len(x), -1, h.dim)
        at = self.positions.long()
        q = heads_reference(x[:, : h.queries], h.query_weight, h.rope, at, EPS)
        k = heads_reference(x[:, h.queries :][:, : h.keys], h.key_weight, h.rope, at, EPS)
        v = x[:, h.queries + h.keys :]
        rows = []
        for i, position in enumerate(at.tolist()):
            table = self.tables[self.slots[i]]
            page, offset = int(table[position // PAGE]), position % PAGE
            for kept, new in ((self.keys, k[i]), (self.values, v[i])):
                check_stored(kept, page, offset, new)
            all_k, all_v = (gather_wide(t, table, position + 1) for t in (self.keys, self.values))
            rows.append(attention_reference(q[i][None], all_k, all_v, position).flatten())
        return torch.stack(rows).bfloat16().float()


def make_step(
    positions: list[int],
    dim: int = 128,
    qk_norm: bool = True,
    parts: int = 2,
    normed: bool = True,
    pages: int = 48,
    fp8: bool = False,
) -> Step:
    """A step whose tokens, heads and pages differ in magnitude where pages are FP8, so that a
    misread scale shows."""
    heads = make_heads(dim, qk_norm)
    m = len(positions)
    shuffled = torch.randperm(pages, generator=torch.Generator().manual_seed(5))
    tables = torch.zeros(m + 1, max(positions) // PAGE + 2, dtype=torch.int32)
    used = 0
    for row, position in enumerate(positions):
        count = position // PAGE + 1
        tables[m - row, :count] = shuffled[used : used + count]
        used += count
    assert used <= pages
    width = (heads.queries + 2 * heads.keys) * dim
    rows = None
    if normed:
        rows = NormedRows.empty(m, 256, DEVICE)
        rows.squares.copy_(random(2, m, seed=6).abs() * 256)
    keys, values = (random(pages, heads.keys, PAGE, dim, seed=s).bfloat16() for s in (3, 4))
    return Step(
        heads,
        quantise_heads(keys * magnitudes(*keys.shape[:3], seed=8)) if fp8 else keys,
        quantise_heads(values * magnitudes(*keys.shape[:3], seed=9)) if fp8 else values,
        tables.to(DEVICE),
        torch.tensor([m - row for row in range(m)], dtype=torch.int32, device=DEVICE),
        torch.tensor(positions, dtype=torch.int32, device=DEVICE),
        random(parts, m, width, seed=7) if parts > 1 else random(1, m, width, seed=7).bfloat16(),
        rows,
    )


def shared(step: Step, pages: int, rows: int) -> Step:
    """The same step with the first ``pages`` pages of the first ``rows`` rows those of row 0."""
    tables = step.tables.clone()
    for row in range(rows):
        tables[step.slots[row], :pages] = step.tables[step.slots[0], :pages]
    return replace(step, tables=tables)


def groups_of(rows: list[list[int]]) -> torch.Tensor:
    table = torch.full((len(rows), 16), -1, dtype=torch.int32)
    for group, members in enumerate(rows):
        table[group, : len(members)] = torch.tensor(members, dtype=torch.int32)
    return table.to(DEVICE)


def sharing(tokens: list[int], positions: list[int]) -> torch.Tensor:
    """int32 [M, 2]: what each row shares, and how its context is cut."""
    pairs = [(n, cut_on_host(p + 1)) for n, p in zip(tokens, positions, strict=True)]
    return torch.tensor(pairs, dtype=torch.int32, device=DEVICE)


def laid_out(*spans: tuple[int, int], rows: int) -> torch.Tensor:
    """int32 [tiles of ``rows``, 3]."""
    tiles = tiles_of(spans)
    tiles += [(0, 0, 0)] * (-(-rows // TILE_TOKENS) - len(tiles))
    return torch.tensor(tiles, dtype=torch.int32, device=DEVICE)
