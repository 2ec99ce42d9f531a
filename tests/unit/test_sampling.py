from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from shoal.engine.model.philox import log_exponential
from shoal.engine.model.sampling import (
    RETRY_TEMPERATURE,
    RETRY_TOP_P,
    WINDOW_FRAMES,
    filtered_probs,
    prev_tokens_shift_inplace,
    race,
    slow_candidate,
)

DATA = Path(__file__).parents[1] / "data" / "s2_tiny"
GOLDEN = load_file(DATA / "golden.safetensors")
COMBOS = json.loads((DATA / "golden.json").read_text())["sampler_combos_temp_topp_topk"]
ROWS = 40_000
TEN_SIGMA = 10


def exponentials(rows: int, candidates: int, seed: int = 0, streams: int = 1) -> Tensor:
    """Noise of ``rows`` frames of one request [rows, streams, candidates]."""
    return log_exponential(
        torch.tensor([[seed, 0]]).expand(rows, 2),
        torch.arange(rows),
        torch.zeros(streams, dtype=torch.int64),
        torch.arange(streams),
        candidates,
    )


def column(value: float, rows: int) -> Tensor:
    return torch.full((rows, 1), value)


def drawn(
    logits: Tensor, temperature: float, top_p: float, top_k: int, noise: Tensor, wide: bool
) -> Tensor:
    rows = len(logits)
    return race(
        logits,
        column(1.0 / max(temperature, 1e-5), rows),
        column(top_p, rows),
        torch.full((rows, 1), top_k),
        noise,
        wide,
    )


def assert_frequencies(picks: Tensor, probs: Tensor) -> None:
    """Ten standard deviations: a wrong law fails, an unlucky seed does not."""
    counts = torch.bincount(picks, minlength=len(probs)).float()
    assert (counts[probs == 0] == 0).all()
    deviation = (counts - probs * len(picks)).abs()
    allowed = TEN_SIGMA * (len(picks) * probs * (1 - probs)).sqrt()
    assert (deviation <= allowed + 1e-6).all()


@pytest.mark.parametrize(("index", "combo"), list(enumerate(COMBOS)))
def test_filter_and_softmax_are_the_references_own(index: int, combo: list[float]) -> None:
    temperature, top_p, top_k = combo
    probs = filtered_probs(GOLDEN["sampler/logits"], temperature, top_p, int(top_k))
    assert torch.equal(probs > 0, GOLDEN["sampler/probs"][index] > 0)
    if torch.backends.cpu.get_cpu_capability() == "AVX512":  # where the reference was run
        assert torch.equal(probs, GOLDEN["sampler/probs"][index])
    else:
        torch.testing.assert_close(probs, GOLDEN["sampler/probs"][index], atol=1e-7, rtol=1e-6)


def test_the_candidate_that_crosses_top_p_is_dropped() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    assert (filtered_probs(logits, 1.0, 0.79, 30) > 0).tolist() == [True, False, False, False]
    assert (filtered_probs(logits, 1.0, 0.81, 30) > 0).tolist() == [True, True, False, False]
    assert (filtered_probs(logits, 1.0, 0.1, 30) > 0).tolist() == [True, False, False, False]


def test_temperature_comes_after_the_filter() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    hot = filtered_probs(logits, 2.0, 0.81, 30)
    assert (hot > 0).tolist() == [True, True, False, False]
    assert hot[0] / hot[1] == pytest.approx((0.5 / 0.3) ** 0.5)


@given(
    st.integers(0, 10_000),
    st.sampled_from([0.1, 0.7, 1.0, 1.5]),
    st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    st.sampled_from([1, 2, 30, 32, 33, 100, 1000]),
)
def test_a_race_over_the_best_few_is_the_race_over_the_definition(
    seed: int, temperature: float, top_p: float, top_k: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 100, generator=generator) * 3
    noise = exponentials(4, 100, seed)[:, 0]
    wide = top_k > 32
    picks = drawn(logits, temperature, top_p, min(top_k, 100), noise, wide)
    probs = filtered_probs(logits.double(), temperature, top_p, top_k)
    expected = (torch.log(probs) - noise.double()).argmax(-1)
    assert torch.equal(picks, expected)
    if not wide:  # other rows may ask for more ranks without changing this one
        assert torch.equal(drawn(logits, temperature, top_p, top_k, noise, True), expected)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, 30), (1.0, 30), (0.97, 5), (1.0, 60)])
def test_draws_follow_the_filtered_law(temperature: float, top_p: float, top_k: int) -> None:
    logits = torch.randn(60, generator=torch.Generator().manual_seed(4)) * 1.5
    noise = exponentials(ROWS, 60)[:, 0]
    picks = drawn(logits.expand(ROWS, 60), temperature, top_p, top_k, noise, top_k > 32)
    assert_frequencies(picks, filtered_probs(logits, temperature, top_p, top_k))


def test_one_rank_is_the_arg_max() -> None:
    logits = torch.randn(500, 90, generator=torch.Generator().manual_seed(1))
    picks = drawn(logits, 0.0, 1.0, 1, exponentials(500, 90)[:, 0], False)
    assert torch.equal(picks, logits.argmax(-1))


# Repetition-aware slow token ----------------------------------------------------------------------

BEGIN = 100
CODES = 40


def slow_draws(
    logits: Tensor, window: Tensor, rows: int, temperature: float = 0.7, top_p: float = 0.8
) -> Tensor:
    return slow_candidate(
        logits.expand(rows, -1),
        column(1 / temperature, rows),
        column(top_p, rows),
        torch.full((rows, 1), 30),
        exponentials(rows, CODES + 1, streams=2),
        window.expand(rows, -1, -1),
        BEGIN,
        False,
    )


def window_of(*tokens: int) -> Tensor:
    window = torch.zeros(1, WINDOW_FRAMES, 3, dtype=torch.int32)
    for place, token in enumerate(tokens, WINDOW_FRAMES - len(tokens)):
        window[0, place] = torch.tensor([token, 7, 7])
    return window


def slow_logits(end: float = -20.0) -> Tensor:
    logits = torch.randn(CODES + 1, generator=torch.Generator().manual_seed(9)) * 2
    logits[CODES] = end
    return logits


def test_an_empty_window_changes_nothing() -> None:
    logits = slow_logits()
    picks = slow_draws(logits, window_of(), ROWS)
    assert_frequencies(picks, filtered_probs(logits, 0.7, 0.8, 30))


def test_a_repeated_token_is_drawn_again_with_other_values() -> None:
    logits = slow_logits()
    first = filtered_probs(logits, 0.7, 0.8, 30)
    second = filtered_probs(logits, RETRY_TEMPERATURE, RETRY_TOP_P, 30)
    best = int(first.argmax())
    picks = slow_draws(logits, window_of(BEGIN + best), ROWS)
    expected = first.clone()
    expected[best] = 0
    expected += first[best] * second
    assert expected[best] > 0.02  # the second draw is not looked at again
    assert_frequencies(picks, expected)


@pytest.mark.parametrize("place", [0, 5, WINDOW_FRAMES - 1])
def test_every_place_of_the_window_counts_and_codes_do_not(place: int) -> None:
    logits = slow_logits()
    best = int(logits.argmax())
    window = window_of()
    window[0, place, 0] = BEGIN + best
    changed = slow_draws(logits, window, 2000)
    other = window_of()
    other[0, place, 1:] = BEGIN + best
    same = slow_draws(logits, other, 2000)
    plain = slow_draws(logits, window_of(), 2000)
    assert torch.equal(same, plain)
    assert not torch.equal(changed, plain)
    assert torch.equal(changed[plain != best], plain[plain != best])


def test_the_end_token_is_never_drawn_again() -> None:
    logits = slow_logits(end=20.0)
    picks = slow_draws(logits, window_of(BEGIN + CODES, BEGIN + CODES), 500)
    assert (picks == CODES).all()


# The window ---------------------------------------------------------------------------------------


@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 4), st.integers(1, 25))
def test_the_window_holds_the_last_columns(bs: int, width: int, cw: int, steps: int) -> None:
    prev = torch.zeros(bs, width, cw, dtype=torch.int32)
    history = [torch.zeros(bs, cw, dtype=torch.int32)] * width
    for step in range(1, steps + 1):
        column = torch.arange(step * 100, step * 100 + bs * cw, dtype=torch.int32).view(bs, cw)
        prev_tokens_shift_inplace(prev, column)
        history.append(column)
    assert torch.equal(prev, torch.stack(history[-width:], 1))


def test_the_window_is_changed_in_place() -> None:
    prev = torch.arange(24, dtype=torch.int32).view(2, 3, 4)
    address = prev.data_ptr()
    assert prev_tokens_shift_inplace(prev, torch.full((2, 4), -1, dtype=torch.int32)) is None
    assert prev.data_ptr() == address
    assert prev[0].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11], [-1, -1, -1, -1]]


GOOD_PREV = torch.zeros(2, 10, 11, dtype=torch.int32)
GOOD_NEXT = torch.ones(2, 11, dtype=torch.int32)
REFUSED: list[tuple[str, object, object, type[Exception]]] = [
    ("prev int64", GOOD_PREV.long(), GOOD_NEXT, TypeError),
    ("next int64", GOOD_PREV, GOOD_NEXT.long(), TypeError),
    ("both int64", GOOD_PREV.long(), GOOD_NEXT.long(), TypeError),
    ("prev float", GOOD_PREV.float(), GOOD_NEXT, TypeError),
    ("next int16", GOOD_PREV, GOOD_NEXT.short(), TypeError),
    ("next bool", GOOD_PREV, GOOD_NEXT.bool(), TypeError),
    ("prev no tensor", GOOD_PREV.numpy(), GOOD_NEXT, TypeError),
    ("next a list", GOOD_PREV, GOOD_NEXT.tolist(), TypeError),
    ("next None", GOOD_PREV, None, TypeError),
    ("prev rank 2", GOOD_PREV[0], GOOD_NEXT, ValueError),
    ("prev rank 4", GOOD_PREV[None], GOOD_NEXT, ValueError),
    ("next rank 1", GOOD_PREV, GOOD_NEXT[0], ValueError),
    ("next rank 3", GOOD_PREV, GOOD_NEXT[:, None], ValueError),
    ("other rows", GOOD_PREV, torch.ones(1, 11, dtype=torch.int32), ValueError),
    ("other columns", GOOD_PREV, torch.ones(2, 10, dtype=torch.int32), ValueError),
    ("one column, which would broadcast", GOOD_PREV, GOOD_NEXT[:, :1].clone(), ValueError),
    ("no window", GOOD_PREV[:, :0].contiguous(), GOOD_NEXT, ValueError),
    ("prev transposed", GOOD_PREV.new_zeros(10, 2, 11).transpose(0, 1), GOOD_NEXT, ValueError),
    ("prev strided", GOOD_PREV.new_zeros(2, 20, 11)[:, ::2], GOOD_NEXT, ValueError),
    ("next strided", GOOD_PREV, GOOD_NEXT.new_ones(2, 22)[:, ::2], ValueError),
    ("next expanded", GOOD_PREV, GOOD_NEXT[:1].expand(2, 11), ValueError),
    ("prev sparse", GOOD_PREV.to_sparse(), GOOD_NEXT, ValueError),
    ("next elsewhere", GOOD_PREV, GOOD_NEXT.to("meta"), ValueError),
]


@pytest.mark.parametrize(("name", "prev", "next", "error"), REFUSED, ids=[r[0] for r in REFUSED])
def test_anything_else_is_refused_and_nothing_changes(
    name: str, prev: object, next: object, error: type[Exception]
) -> None:
    before = prev.clone() if isinstance(prev, Tensor) and prev.layout == torch.strided else None
    with pytest.raises(error):
        prev_tokens_shift_inplace(prev, next)  # pyright: ignore[reportArgumentType]
    if before is not None:
        assert isinstance(prev, Tensor) and torch.equal(prev, before)
