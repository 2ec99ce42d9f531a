"""What the CPU runner draws: the reference's tokens, the definition's, and the same bits in any
company."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from shoal.engine.model.compile import packs_linear, rows_are_independent
from shoal.engine.model.config import read_config
from shoal.engine.model.dual_ar import DualAR
from shoal.engine.model.philox import log_exponential, seed_words
from shoal.engine.model.sampling import WINDOW_FRAMES, filtered_probs
from shoal.engine.model.weights import load_weights
from shoal.engine.runner import Int32Array, Join, SlotSampling
from tests.turns import (
    BUILTIN,
    DATA,
    GREEDY,
    PAGE,
    SLOTS,
    TEXTS,
    Steps,
    Turn,
    keys_and_values,
    prompt_of,
    sampled,
    tiny_runner,
)


def test_the_built_in_voice_speaks_for_a_plausible_time(steps: Steps) -> None:
    turns = [Turn(seed, prompt_of(TEXTS[0]), sampled(seed)) for seed in range(4)]
    steps.speak(turns, 80)
    for turn in turns:
        assert turn.ended
        assert 20 <= len(turn.columns) <= 60  # 1 to 3 s at 20 frames a second
        tokens = [column[0] for column in turn.columns[:-1]]
        assert all(320 <= token < 1344 for token in tokens)
        assert [column[1] + 320 for column in turn.columns[:-1]] == tokens
        assert turn.columns[-1][0] == 259
    assert len({str(turn.columns) for turn in turns}) == 4


# Parity through pages, slots and compiled steps ---------------------------------------------------


@pytest.mark.parametrize("name", ["s2_tiny", "s1_tiny"])
@pytest.mark.parametrize("prompt", ["plain", "ref1", "ref2_multi_turn"])
def test_greedy_columns_are_the_references_own(name: str, prompt: str) -> None:
    golden = load_file(DATA / "s2_tiny" / "golden.safetensors")
    golden |= load_file(DATA / name / "golden.safetensors")
    runner = tiny_runner(name)
    turn = Turn(1, golden[f"prompt/{prompt}"].T.astype(np.int32), GREEDY)
    expected = golden[f"gen/{prompt}/greedy"].T
    Steps(runner).speak([turn], len(expected))
    runner.close()
    assert turn.columns == expected.tolist()
    assert turn.ended == (expected[-1, 0] == 265)


def by_definition(prompt: Int32Array, sampling: SlotSampling, draw: int, steps: int) -> list[int]:
    """Slow tokens of ``s2_tiny``, each from the whole conversation read anew: the filter's
    definition, the addressed noise, and a window that the first frame does not enter."""
    config = read_config(DATA / "s2_tiny")
    model = DualAR(config, load_weights(DATA / "s2_tiny", config), range(275, 339), 265)
    seeds = torch.tensor([seed_words(sampling.seed)])

    def pick(logits: torch.Tensor, book: int, stream: int, frame: int, t: float, p: float) -> int:
        where = (torch.tensor([draw + frame]), torch.tensor([book]), torch.tensor([stream]))
        noise = log_exponential(seeds, *where, logits.numel())[0, 0]
        return int((filtered_probs(logits, t, p, sampling.top_k).log() - noise).argmax())

    columns = torch.from_numpy(prompt)
    window = [0] * WINDOW_FRAMES
    tokens: list[int] = []
    for frame in range(steps):
        count = len(columns)
        mask = torch.full((count, count), -torch.inf).triu(1).repeat_interleave(2, 0)
        residual = model.slow_stack(
            model.embed(columns),
            torch.arange(count),
            [torch.zeros(4, 512, 32) for _ in range(3)],
            PAGE,
            torch.arange(count),
            [torch.arange(8)],
            [count],
            [count],
            mask,
        )
        hidden, logits = model.slow_head(residual[-1:])
        candidate = pick(logits[0], 0, 0, frame, sampling.temperature, sampling.top_p)
        if candidate < 64 and candidate + 275 in window:
            candidate = pick(logits[0], 0, 1, frame, 1.0, 0.9)
        tokens.append(candidate + 275 if candidate < 64 else 265)
        if tokens[-1] == 265:
            break
        if frame:
            window = [*window[1:], tokens[-1]]
        column = [tokens[-1], candidate]
        logits, caches = model.fast_first(hidden, torch.tensor([candidate]))
        for book in range(1, 10):
            code = pick(logits[0], book, 0, frame, sampling.temperature, sampling.top_p)
            column.append(code)
            if book < 9:
                logits = model.fast_next(torch.tensor([code]), book + 1, caches)
        columns = torch.cat([columns, torch.tensor([column], dtype=torch.int32)])
    return tokens


@pytest.mark.parametrize("seed", range(4))
def test_sampled_tokens_are_those_of_the_definition(tiny: Steps, seed: int) -> None:
    prompt = load_file(DATA / "s2_tiny" / "golden.safetensors")["prompt/plain"].T.astype(np.int32)
    sampling = SlotSampling(temperature=0.5, top_p=0.8, top_k=20, seed=seed)
    turn = Turn(0, prompt, sampling, draw=1000 * seed)
    tiny.speak([turn], 30)
    with torch.inference_mode():
        expected = by_definition(prompt, sampling, 1000 * seed, 30)
    assert [column[0] for column in turn.columns] == expected
    repeats = len(expected) - len(set(expected))
    assert repeats > 3  # the second draw had its occasions


def test_a_segment_remembers_nothing_of_the_one_before_it(tiny: Steps) -> None:
    prompt = load_file(DATA / "s2_tiny" / "golden.safetensors")["prompt/plain"].T.astype(np.int32)
    for seed in range(20):
        sampling = SlotSampling(temperature=0.5, top_p=0.8, top_k=20, seed=seed)
        once, again = Turn(0, prompt, sampling), Turn(0, prompt, sampling)
        tiny.speak([once], 4)
        tiny.speak([again], 4)
        assert again.columns == once.columns


# Batch invariance ---------------------------------------------------------------------------------


def test_products_of_this_machine_are_the_same_for_any_number_of_rows() -> None:
    config = read_config(BUILTIN)
    weights = load_weights(BUILTIN, config)
    model = DualAR(config, weights, range(320, 1344), 259, packed=packs_linear())
    if packs_linear():
        assert rows_are_independent(model, SLOTS)


@pytest.mark.parametrize("rows_vary", [True, False])
def test_codes_are_the_same_alone_and_among_any_neighbours(steps: Steps, rows_vary: bool) -> None:
    """Every batch size, every slot, every place in the batch; and not the codes alone: the keys
    and values behind them are the same bits."""
    state = steps.runner._state  # pyright: ignore[reportPrivateUsage]
    before = state.rows_vary
    state.rows_vary = rows_vary and before
    alone = [Turn(0, prompt_of(text), sampled(i)) for i, text in enumerate(TEXTS)]
    kept: list[list[torch.Tensor]] = []
    for turn in alone:
        steps.speak([turn], 25)
        kept.append(keys_and_values(steps.runner, turn))
    for size in range(2, SLOTS + 1):
        for shift in (0, 3):
            order = [(i + shift) % SLOTS for i in range(size)]
            together = [
                Turn((5 * place + shift) % SLOTS, prompt_of(TEXTS[i]), sampled(i))
                for place, i in enumerate(order)
            ]
            steps.speak(together, 25 if size in (2, SLOTS) else 8)
            for turn, i in zip(together, order, strict=True):
                made = torch.tensor(turn.columns)
                assert torch.equal(made, torch.tensor(alone[i].columns)[: len(made)])
                for one, other in zip(keys_and_values(steps.runner, turn), kept[i], strict=True):
                    assert torch.equal(one, other[:, : one.size(1)])
    state.rows_vary = before


def test_a_row_with_a_large_top_k_changes_nothing_for_others(steps: Steps) -> None:
    alone = [
        Turn(0, prompt_of(TEXTS[0]), sampled(1)),
        Turn(1, prompt_of(TEXTS[1]), sampled(2, 10**30)),
    ]
    for turn in alone:
        steps.speak([turn], 20)
    together = [
        Turn(4, prompt_of(TEXTS[0]), sampled(1)),
        Turn(3, prompt_of(TEXTS[1]), sampled(2, 10**30)),
    ]
    steps.speak(together, 20)
    assert [turn.columns for turn in together] == [turn.columns for turn in alone]


def test_codes_do_not_depend_on_a_random_schedule(steps: Steps) -> None:
    """Turns join and leave at any step, are left out of steps, and prefill beside running ones."""
    alone = [Turn(0, prompt_of(text), sampled(40 + i)) for i, text in enumerate(TEXTS)]
    for turn in alone:
        steps.speak([turn], 40)
    choose = random.Random(5)
    waiting = list(range(len(TEXTS)))
    choose.shuffle(waiting)
    running: dict[int, Turn] = {}
    done: dict[int, Turn] = {}
    while len(done) < len(TEXTS):
        joins: list[Join] = []
        if waiting and (not running or choose.random() < 0.3):
            i = waiting.pop()
            free = [s for s in range(SLOTS) if s not in {t.slot for t in running.values()}]
            running[i] = Turn(choose.choice(free), prompt_of(TEXTS[i]), sampled(40 + i))
            running[i].prefill(steps.runner)
            joins.append(running[i].join())
        slots = {turn.slot for turn in running.values() if choose.random() < 0.8}
        slots |= {join.slot for join in joins}
        if not slots:
            continue
        order = list(slots)
        choose.shuffle(order)
        result = steps.one(order, joins)
        for i, turn in list(running.items()):
            turn.take(result)
            if turn.ended or len(turn.columns) == 40:
                done[i] = running.pop(i)
    for i, turn in done.items():
        assert torch.equal(torch.tensor(turn.columns), torch.tensor(alone[i].columns))


def test_seed_and_draw_counter_decide_the_codes(steps: Steps) -> None:
    turns = [
        Turn(0, prompt_of(TEXTS[0]), sampled(1)),
        Turn(1, prompt_of(TEXTS[0]), sampled(1)),
        Turn(2, prompt_of(TEXTS[0]), sampled(2)),
        Turn(3, prompt_of(TEXTS[0]), sampled(1), draw=1000),
        Turn(4, prompt_of(TEXTS[0]), GREEDY),
    ]
    steps.speak(turns, 15)
    columns = [turn.columns for turn in turns]
    assert columns[0] == columns[1]
    assert len({str(each) for each in columns[1:]}) == 4
