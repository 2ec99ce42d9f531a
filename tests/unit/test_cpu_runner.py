"""The CPU runner's contract: steps, pages, prefill, sound, loading."""

from __future__ import annotations

import shutil
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from shoal.engine.checkpoint import CheckpointError
from shoal.engine.cpu_runner import CpuRunner
from shoal.engine.runner import Join, PageGrant, PrefillChunk, Runner, StepPlan, VocodeBatch
from tests.turns import (
    BUILDER,
    DATA,
    GREEDY,
    PAGE,
    PAGES_EACH,
    SLOTS,
    TEXTS,
    Steps,
    Turn,
    pools,
    prompt_of,
    sampled,
    tiny_runner,
)


def test_it_is_a_runner_and_says_its_sizes(steps: Steps) -> None:
    runner: Runner = steps.runner
    spec = runner.spec
    assert (spec.codebooks, spec.frame_samples, spec.sample_rate) == (8, 1200, 24000)
    assert (spec.max_slots, spec.page_tokens, spec.max_positions) == (SLOTS, PAGE, 2048)
    assert (spec.pages, spec.end_token) == (SLOTS * PAGES_EACH + 16, 259)


# The step's contract ------------------------------------------------------------------------------


def test_two_steps_in_flight_are_the_same_as_one_after_another(steps: Steps) -> None:
    one, two = (Turn(slot, prompt_of(TEXTS[2]), sampled(7)) for slot in (0, 6))
    steps.speak([one], 20)
    two.prefill(steps.runner)
    runner, begin = steps.runner, steps.count
    runner.launch(StepPlan(begin, (6,), (two.join(),)))
    for step in range(begin + 1, begin + 20):
        runner.launch(StepPlan(step, (6,)))
        two.take(runner.collect(step - 1))
    two.take(runner.collect(begin + 19))
    steps.count = begin + 20
    assert two.columns == one.columns


def test_launch_and_collect_hold_the_caller_to_the_order(tiny: Steps) -> None:
    runner = tiny.runner
    with pytest.raises(ValueError, match="0 is next"):
        runner.launch(StepPlan(1, ()))
    with pytest.raises(ValueError, match="step 0"):
        runner.collect(0)
    runner.launch(StepPlan(0, ()))
    runner.launch(StepPlan(1, ()))
    with pytest.raises(ValueError, match="not collected"):
        runner.launch(StepPlan(2, ()))
    with pytest.raises(ValueError, match="step 1"):
        runner.collect(1)
    assert runner.collect(0).slots == ()
    runner.launch(StepPlan(2, ()))
    assert [runner.collect(1).step, runner.collect(2).step] == [1, 2]


def test_a_row_that_ended_unseen_changes_nothing_and_says_so_again(steps: Steps) -> None:
    turn = Turn(2, prompt_of(TEXTS[1]), sampled(3), generation=8)
    steps.speak([turn], 60)
    assert turn.ended
    before = pools(steps.runner)
    neighbour = Turn(5, prompt_of(TEXTS[0]), sampled(3))
    neighbour.prefill(steps.runner)
    changed = neighbour.table
    result = steps.one((2, 5), [neighbour.join()])
    assert result.ended.tolist() == [True, False]
    assert result.columns[0].tolist() == turn.columns[-1]
    assert result.generations == (8, 0)
    keep = [page for page in range(steps.runner.spec.pages) if page not in changed]
    for old, new in zip(before, pools(steps.runner), strict=True):
        assert torch.equal(old.view(4, -1, PAGE, 64)[:, keep], new.view(4, -1, PAGE, 64)[:, keep])
    # All rows over: nothing is computed, and the result still comes.
    again = steps.one((2,))
    assert again.ended.tolist() == [True]
    # A new segment in the same slot starts afresh.
    fresh = Turn(2, prompt_of(TEXTS[1]), sampled(3), generation=9)
    steps.speak([fresh], 60)
    assert fresh.columns == turn.columns


def test_slots_left_out_are_untouched(steps: Steps) -> None:
    whole = Turn(0, prompt_of(TEXTS[2]), sampled(11))
    steps.speak([whole], 12)
    broken = Turn(1, prompt_of(TEXTS[2]), sampled(11))
    steps.speak([broken], 6)
    other = Turn(3, prompt_of(TEXTS[3]), sampled(1))
    steps.speak([other], 5)
    for _ in range(6):
        broken.take(steps.one((1,)))
    assert broken.columns == whole.columns


def test_pages_are_granted_as_the_context_grows(tiny: Steps) -> None:
    prompt = np.zeros((PAGE - 2, 11), np.int32)
    prompt[:, 0] = 40
    table = (3,)
    tiny.runner.prefill(PrefillChunk(prompt[:-1], 0, table))
    join = Join(0, 0, PAGE - 3, 0, prompt[-1], table, sampled(5))
    got = [tiny.one((0,), [join]).columns, *(tiny.one((0,)).columns for _ in range(2))]
    got.append(tiny.one((0,), grants=[PageGrant(0, 9)]).columns)
    got += [tiny.one((0,)).columns for _ in range(3)]

    wide = Turn(1, prompt, sampled(5), first_page=10)
    tiny.speak([wide], 7)
    assert np.concatenate(got).tolist() == wide.columns


def test_a_step_without_a_page_for_its_position_fails_loudly() -> None:
    runner = tiny_runner()
    column = np.zeros(11, np.int32)
    runner.launch(StepPlan(0, (0,), (Join(0, 0, PAGE, 0, column, (1,), GREEDY),)))
    with pytest.raises(ValueError, match="slot 0: no page for position 64"):
        runner.collect(0)
    runner.close()


# Prefill ------------------------------------------------------------------------------------------


def test_a_shared_prefix_is_read_by_many_and_written_by_none(steps: Steps) -> None:
    """A voice of a hundred positions: one full page shared, the rest copied for each stream."""
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 1024, (100, 8)).astype(np.int32)
    prefix = np.concatenate([BUILDER.frames(codes)])
    shared = (SLOTS * PAGES_EACH, SLOTS * PAGES_EACH + 1)
    runner = steps.runner
    runner.prefill(PrefillChunk(prefix, 0, shared))
    before = pools(runner)
    turns: list[Turn] = []
    joins: list[Join] = []
    for slot in range(3):
        user = BUILDER.user_turn(TEXTS[slot])
        table = (shared[0], slot * PAGES_EACH, slot * PAGES_EACH + 1, slot * PAGES_EACH + 2)
        runner.prefill(PrefillChunk(user[:-1], len(prefix), table, (shared[1], table[1])))
        position = len(prefix) + len(user) - 1
        joins.append(Join(slot, 0, position, 0, user[-1], table, sampled(slot)))
        turns.append(Turn(slot, np.concatenate([prefix, user]), sampled(slot)))
    for _ in range(20):
        result = steps.one((0, 1, 2), joins)
        joins = []
        for turn in turns:
            turn.take(result)
    for old, new in zip(before, pools(runner), strict=True):
        for page in shared:
            rows = slice(page * PAGE, (page + 1) * PAGE)
            assert torch.equal(old[:, rows], new[:, rows])
    for turn in turns:
        own = Turn(turn.slot + 3, turn.prompt, turn.sampling)
        steps.speak([own], 20)
        assert own.columns == turn.columns


@pytest.mark.parametrize("cuts", [(10,), (32, 64), (1, 2, 33), (50, 51), tuple(range(1, 140))])
def test_prefill_in_parts_is_prefill_at_once(tiny: Steps, cuts: tuple[int, ...]) -> None:
    prompt = load_file(DATA / "s2_tiny" / "golden.safetensors")["prompt/ref1"].T.astype(np.int32)
    tiny.runner.prefill(PrefillChunk(prompt, 0, (0, 1, 2)))
    bounds = [0, *cuts, len(prompt)]
    for begin, end in pairwise(bounds):
        tiny.runner.prefill(PrefillChunk(prompt[begin:end], begin, (5, 4, 7)))
    for pool in pools(tiny.runner):
        paged = pool.view(4, -1, PAGE, 32)
        whole = paged[:, [0, 1, 2]].flatten(1, 2)[:, : len(prompt)]
        parts = paged[:, [5, 4, 7]].flatten(1, 2)[:, : len(prompt)]
        assert torch.equal(parts, whole)


def test_prefill_beside_running_steps_disturbs_neither(steps: Steps) -> None:
    alone = Turn(0, prompt_of(TEXTS[6]), sampled(21))
    steps.speak([alone], 30)
    long = np.concatenate([prompt_of(text) for text in TEXTS])[: 5 * PAGE]
    runner = steps.runner
    quiet, busy = tuple(range(6, 12)), tuple(range(12, 18))
    runner.prefill(PrefillChunk(long, 0, quiet))
    running = Turn(0, prompt_of(TEXTS[6]), sampled(21))
    stop = threading.Event()

    def prefill_again_and_again() -> None:
        while not stop.is_set():
            runner.prefill(PrefillChunk(long, 0, busy))

    thread = threading.Thread(target=prefill_again_and_again)
    running.prefill(runner)
    thread.start()
    joins = [running.join()]
    for _ in range(len(alone.columns)):
        running.take(steps.one((0,), joins))
        joins = []
    stop.set()
    thread.join()
    assert running.columns == alone.columns
    for pool in pools(runner):
        paged = pool.view(4, -1, PAGE, 64)
        assert torch.equal(paged[:, list(quiet[:5])], paged[:, list(busy[:5])])


def test_prefill_beyond_its_pages_is_refused(tiny: Steps) -> None:
    with pytest.raises(ValueError, match="1 pages do not hold 65"):
        tiny.runner.prefill(PrefillChunk(np.zeros((1, 11), np.int32), PAGE, (0,)))


# Sound --------------------------------------------------------------------------------------------


def test_vocode_is_the_codec_in_16_bits(steps: Steps) -> None:
    codes = np.random.default_rng(1).integers(0, 1024, (2, 6, 8)).astype(np.int32)
    both = np.ones(2, np.bool_)
    whole = steps.runner.vocode(VocodeBatch((1, 4), codes, both))
    assert (whole.shape, whole.dtype) == ((2, 6 * 1200), np.int16)
    assert np.abs(whole).max() > 500
    first = steps.runner.vocode(VocodeBatch((4,), codes[1:, :2], both[:1]))
    rest = steps.runner.vocode(VocodeBatch((4,), codes[1:, 2:], ~both[:1]))
    parts = np.concatenate([first, rest], 1)
    assert np.abs(parts.astype(int) - whole[1:]).max() <= 1


def test_a_recording_becomes_codes(steps: Steps) -> None:
    sound = np.sin(np.arange(24000 + 1) / 20).astype(np.float32) * 0.3
    codes = steps.runner.encode(sound)
    assert (codes.shape, codes.dtype) == ((21, 8), np.int32)
    assert 0 <= codes.min() and codes.max() < 1024


# Loading ------------------------------------------------------------------------------------------


def test_loading_tells_of_its_progress() -> None:
    said: list[str] = []
    runner = CpuRunner.load(DATA / "s2_tiny", slots=2, progress=said.append)
    runner.close()
    assert any("model-00002-of-00002" in line for line in said)
    assert any("codec" in line for line in said)
    assert runner.spec.pages == 2 * 4096 // PAGE


@pytest.mark.parametrize("missing", ["codec.pth", "tokenizer.json", "config.json"])
def test_a_folder_that_lacks_a_file_is_one_clear_error(missing: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DATA / "s2_tiny", folder)
    (folder / missing).unlink()
    with pytest.raises(CheckpointError, match=missing.replace(".", r"\.")):
        CpuRunner.load(folder, slots=1)
