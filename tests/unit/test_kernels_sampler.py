"""The sampler, its window and the slow stack's embedding against plain torch."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.engine.model import philox
from shoal.engine.model.sampling import slow_candidate, topk_race
from shoal.kernels.embedding import embed, embed_reference
from shoal.kernels.norm import NormedRows, add_norm
from shoal.kernels.race import race_reference
from shoal.kernels.sampler import FastInput, Sampling, SlowToken, sample
from shoal.kernels.window import prev_tokens_shift_inplace, shift_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
V, D, BEGIN, END = 256, 256, 1000, 77
EPS = 1e-6

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    log_exponential = torch.jit.script(philox.log_exponential)
TEMPERATURES = [0.7, 1.0, 0.3, 1.2, 0.0, 0.8]
TOP_PS = [0.7, 0.9, 1.0, 0.95, 0.8, 0.05]
TOP_KS = [30, 5, 1, 32, 30, 30]
SEEDS = [7, 2**40 + 3, -5, 2**64 - 1, 11, 0]
M = len(SEEDS)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def state(draw: int, top_ks: list[int] | None = None) -> tuple[Sampling, torch.Tensor]:
    """Sampling values as columns of one state tensor, slots in reverse order of rows."""
    table = torch.zeros(M + 1, 9, dtype=torch.int32)
    floats = table.view(torch.float32)
    for row in range(M):
        at = M - row
        floats[at, 0], floats[at, 1] = TEMPERATURES[row], TOP_PS[row]
        words = [w - (1 << 32) if w >= 1 << 31 else w for w in philox.seed_words(SEEDS[row])]
        table[at, 2] = (top_ks or TOP_KS)[row]
        table[at, 3], table[at, 4] = words[0], words[1]
        table[at, 5] = draw
    table = table.to(DEVICE)
    floats = table.view(torch.float32)
    slots = torch.tensor([M - row for row in range(M)], dtype=torch.int32, device=DEVICE)
    return Sampling(floats[:, 0], floats[:, 1], *(table[:, c] for c in range(2, 6))), slots


def engine_arguments(top_ks: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inverse temperature, top_p and top_k as the engine's sampler on a CPU takes them."""
    inverse = torch.tensor([1 / max(t, 1e-5) for t in TEMPERATURES])[:, None]
    ks = torch.tensor([1 if t <= 0 else k for t, k in zip(TEMPERATURES, top_ks, strict=True)])
    return inverse, torch.tensor(TOP_PS)[:, None], ks[:, None]


def seed_table() -> torch.Tensor:
    return torch.tensor([philox.seed_words(s) for s in SEEDS])


@pytest.mark.parametrize("parts", [1, 4])
def test_codes_are_those_of_the_engines_sampler(parts: int) -> None:
    codebook = 3
    drawn = set()
    for draw in range(4):
        logits = 3 * random(parts, M, V, seed=draw)
        rounded = logits.sum(0).bfloat16()
        if parts == 1:
            logits = rounded[None]
        sampling, slots = state(draw)
        columns = torch.full((M, 6), -1, dtype=torch.int32, device=DEVICE)
        sample(logits, None, EPS, codebook, slots, sampling, columns)
        noise = log_exponential(
            seed_table(),
            torch.full((M,), draw),
            torch.tensor([codebook]),
            torch.tensor([0]),
            V,
        )
        expected = topk_race(rounded.float().cpu(), *engine_arguments(TOP_KS), noise[:, 0], 32)
        assert columns[:, 1 + codebook].tolist() == expected.tolist()
        one = race_reference(rounded[0].float(), 0.7, 0.7, 30, SEEDS[0], codebook, draw)
        assert one == int(expected[0])
        assert (columns[:, :codebook] == -1).all()
        drawn |= set(expected.tolist())
    assert len(drawn) > M


def test_slow_tokens_with_their_window_and_the_end_token() -> None:
    ends = repeats = 0
    window = torch.zeros(M + 1, 10, dtype=torch.int32)
    end_row = random(D, seed=99).bfloat16()
    for draw in range(8):
        hidden = random(M, D, seed=draw).bfloat16()
        # The end token is somewhere between hopeless and certain.
        scale = 0.05 * draw
        logits = 3 * random(1, M, V, seed=20 + draw)
        logits[:, :, : V - 8] -= 20
        logits = logits.bfloat16()
        sampling, slots = state(draw)
        slow = SlowToken(hidden, (end_row * scale).bfloat16(), window.to(DEVICE), BEGIN, END)
        columns = torch.full((M, 6), -1, dtype=torch.int32, device=DEVICE)
        sample(logits, None, EPS, 0, slots, sampling, columns, slow=slow)

        end = (hidden.float() * slow.end_row.float()).sum(-1).bfloat16().float()
        every = torch.cat([logits[0].float(), end[:, None]], 1).cpu()
        noise = log_exponential(
            seed_table(), torch.full((M,), draw), torch.zeros(2).long(), torch.tensor([0, 1]), V + 1
        )
        past = window[slots.cpu().long()][:, :, None]
        arguments = engine_arguments(TOP_KS)
        chosen = slow_candidate(every, *arguments, noise, past, BEGIN, False)
        first = topk_race(every, *arguments, noise[:, 0], 32)
        ended = chosen == V
        token = torch.where(ended, torch.full_like(chosen, END), chosen + BEGIN)
        assert columns[:, 0].tolist() == token.tolist()
        assert columns[:, 1].tolist() == torch.where(ended, 0, chosen).tolist()
        ends += int(ended.sum())
        repeats += int((first != chosen).sum())
        window[slots.cpu().long()] = torch.cat([past[:, 1:, 0], token[:, None].int()], 1)
    # A test in which nothing ended or repeated would prove nothing.
    assert ends > 3 and repeats > 3


def test_a_top_k_beyond_the_list_sorts_all_candidates() -> None:
    top_ks = [200, V, 100, 33, 64, V + 10]
    logits = random(1, M, V, seed=3).bfloat16()
    sampling, slots = state(1, top_ks)
    columns = torch.full((M, 6), -1, dtype=torch.int32, device=DEVICE)
    sample(logits, None, EPS, 2, slots, sampling, columns)
    noise = log_exponential(
        seed_table(), torch.ones(M).long(), torch.tensor([2]), torch.tensor([0]), V
    )
    expected = topk_race(logits[0].float().cpu(), *engine_arguments(top_ks), noise[:, 0], V)
    assert columns[:, 3].tolist() == expected.tolist()


def test_a_drawn_code_becomes_the_next_input() -> None:
    table, weight = random(V, 384, seed=4).bfloat16(), random(384, seed=5).bfloat16()
    normed = NormedRows.empty(M, D, DEVICE)
    normed.squares.copy_(random(2, M, seed=6).abs() * D)
    logits = random(2, M, V, seed=7)
    sampling, slots = state(2)
    columns = torch.full((M, 6), -1, dtype=torch.int32, device=DEVICE)
    following, residual = NormedRows.empty(M, 384, DEVICE), torch.zeros(M, 384).bfloat16()
    residual = residual.to(DEVICE)
    target = FastInput(table, residual, weight, following)
    sample(logits, normed, EPS, 1, slots, sampling, columns, fast_input=target)
    factor = torch.rsqrt(normed.squares.sum(0) / D + EPS)
    rounded = (logits.sum(0) * factor[:, None]).bfloat16().float()
    for row in (0, 1, 2, 3):
        arguments = (TEMPERATURES[row], TOP_PS[row], TOP_KS[row], SEEDS[row], 1, 2)
        assert int(columns[row, 2]) == race_reference(rounded[row], *arguments)
    assert torch.equal(residual, table[columns[:, 2].long()])
    expected = NormedRows.empty(M, 384, DEVICE)
    add_norm(residual.clone(), weight, expected)
    assert torch.equal(following.rows.values.float(), expected.rows.values.float())
    assert torch.equal(following.rows.scales, expected.rows.scales)
    assert torch.equal(following.squares, expected.squares)


def test_what_the_sampler_cannot_serve_is_refused() -> None:
    sampling, slots = state(0)
    columns = torch.zeros(M, 6, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="power of two"):
        sample(torch.zeros(1, M, 200, device=DEVICE), None, EPS, 1, slots, sampling, columns)
    with pytest.raises(ValueError, match="codebook 0"):
        sample(torch.zeros(1, M, V, device=DEVICE), None, EPS, 0, slots, sampling, columns)


def test_the_window_rolls_in_place() -> None:
    prev = torch.arange(3 * 10 * 11, dtype=torch.int32, device=DEVICE).view(3, 10, 11)
    new = torch.full((3, 11), -7, dtype=torch.int32, device=DEVICE)
    expected = shift_reference(prev.clone(), new)
    memory = prev.data_ptr()
    prev_tokens_shift_inplace(prev, new)
    assert torch.equal(prev, expected) and prev.data_ptr() == memory
    single = torch.zeros(2, 1, 3, dtype=torch.int32, device=DEVICE)
    prev_tokens_shift_inplace(single, new[:2, :3].contiguous())
    assert (single == -7).all()


def test_the_window_refuses_what_it_would_have_to_cast_or_copy() -> None:
    prev = torch.zeros(3, 10, 4, dtype=torch.int32, device=DEVICE)
    new = torch.zeros(3, 4, dtype=torch.int32, device=DEVICE)
    with pytest.raises(TypeError, match="prev must be int32"):
        prev_tokens_shift_inplace(prev.long(), new)
    with pytest.raises(TypeError, match="next must be int32"):
        prev_tokens_shift_inplace(prev, new.float())
    with pytest.raises(TypeError, match="must be a tensor"):
        prev_tokens_shift_inplace(prev, new.tolist())  # type: ignore[arg-type]
    for bad_prev, bad_next in (
        (prev[0], new),
        (prev, new[0]),
        (prev.transpose(1, 2), new),
        (prev[:, :, ::2], new[:, ::2].contiguous()),
        (prev, new[:2]),
        (prev, new[:, :3].contiguous()),
        (prev[:, :0].contiguous(), new),
    ):
        with pytest.raises(ValueError):
            prev_tokens_shift_inplace(bad_prev, bad_next)
    assert not prev.any()


@pytest.mark.parametrize("with_slots", [False, True])
def test_embedding_of_columns(with_slots: bool) -> None:
    books, size, d = 3, 16, 256
    tokens, codes = random(64, d, seed=8).bfloat16(), random(books * size, d, seed=9).bfloat16()
    columns = torch.tensor(
        [[5, 0, 0, 0], [20, 3, 15, 0], [29, 1, 2, 3], [30, 9, 9, 9]], dtype=torch.int32
    ).to(DEVICE)
    state_rows = torch.zeros(5, 9, dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([4, 0, 2, 1], dtype=torch.int32, device=DEVICE)
    state_rows[slots.long(), 2:6] = columns
    expected = embed_reference(columns, tokens, codes, (20, 29), 2.0)
    out = torch.full((4, d), float("nan"), device=DEVICE).bfloat16()
    weight, normed = random(d, seed=10).bfloat16(), NormedRows.empty(4, d, DEVICE)
    if with_slots:
        embed(
            state_rows[:, 2:6],
            tokens,
            codes,
            (20, 29),
            2.0,
            out,
            slots=slots,
            norm_weight=weight,
            normed=normed,
        )
        after = NormedRows.empty(4, d, DEVICE)
        add_norm(out.clone(), weight, after)
        assert torch.equal(normed.rows.values.float(), after.rows.values.float())
        assert torch.equal(normed.squares, after.squares)
    else:
        embed(columns, tokens, codes, (20, 29), 2.0, out)
    assert torch.equal(out, expected)
