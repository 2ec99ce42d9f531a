"""The CPU runner. What must hold for the product is shown with the voice that ships."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from shoal.engine.checkpoint import CheckpointError
from shoal.engine.codec import load_codec
from shoal.engine.cpu_runner import CpuRunner
from shoal.engine.model.compile import packs_linear, rows_are_independent
from shoal.engine.model.config import read_config
from shoal.engine.model.dual_ar import DualAR
from shoal.engine.model.weights import load_weights
from shoal.engine.prompt import PromptBuilder
from shoal.engine.runner import (
    Int32Array,
    Join,
    PageGrant,
    PrefillChunk,
    Runner,
    SlotSampling,
    StepPlan,
    StepResult,
    VocodeBatch,
)
from shoal.engine.tokenizer import load_tokenizer

DATA = Path(__file__).parents[1] / "data"
BUILTIN = Path(__file__).parents[2] / "engine" / "builtin_voice"
PAGE = 64
SLOTS = 8
PAGES_EACH = 6
GREEDY = SlotSampling(temperature=0.0, top_p=0.9, top_k=30, seed=0)


@dataclass
class Turn:
    """One stream's segment on a runner: a prompt, pages of its own, and what came out."""

    slot: int
    prompt: Int32Array
    sampling: SlotSampling
    draw: int = 0
    generation: int = 0
    first_page: int | None = None
    columns: list[list[int]] = field(default_factory=list)
    ended: bool = False

    @property
    def table(self) -> tuple[int, ...]:
        first = self.slot * PAGES_EACH if self.first_page is None else self.first_page
        return tuple(range(first, first + PAGES_EACH))

    def prefill(self, runner: CpuRunner) -> None:
        runner.prefill(PrefillChunk(self.prompt[:-1], 0, self.table))

    def join(self) -> Join:
        return Join(
            slot=self.slot,
            generation=self.generation,
            position=len(self.prompt) - 1,
            draw=self.draw,
            column=self.prompt[-1],
            table=self.table,
            sampling=self.sampling,
        )

    def take(self, result: StepResult) -> None:
        if self.slot in result.slots and not self.ended:
            row = result.slots.index(self.slot)
            self.columns.append(result.columns[row].tolist())
            self.ended = bool(result.ended[row])


class Steps:
    """Counts the steps of one runner across tests."""

    def __init__(self, runner: CpuRunner) -> None:
        self.runner = runner
        self.count = 0

    def one(
        self,
        slots: Sequence[int],
        joins: Sequence[Join] = (),
        grants: Sequence[PageGrant] = (),
    ) -> StepResult:
        self.runner.launch(StepPlan(self.count, tuple(slots), tuple(joins), tuple(grants)))
        self.count += 1
        return self.runner.collect(self.count - 1)

    def speak(self, turns: Sequence[Turn], steps: int) -> None:
        """Join all turns at once and run them side by side."""
        for turn in turns:
            turn.prefill(self.runner)
        joins = [turn.join() for turn in turns]
        for _ in range(steps):
            live = [turn.slot for turn in turns if not turn.ended]
            if not live:
                return
            result = self.one(live, joins)
            joins = []
            for turn in turns:
                turn.take(result)


def builder_of(folder: Path, codebooks: int) -> PromptBuilder:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.semantic is not None
    return PromptBuilder(tokenizer, codebooks, tokenizer.semantic)


BUILDER = builder_of(BUILTIN, 8)


def prompt_of(text: str) -> Int32Array:
    return np.concatenate([BUILDER.prefix(), BUILDER.user_turn(text)])


TEXTS = (
    "hello there, how are you today?",
    "yes.",
    "the quick brown fox jumps over the lazy dog, and then it goes home to sleep.",
    "one two three four five.",
    "what a lovely day it is.",
    "no, thank you.",
    "the train to the coast leaves in a quarter of an hour from the other platform.",
    "good night.",
)


def sampled(seed: int, top_k: int = 30) -> SlotSampling:
    return SlotSampling(temperature=0.7, top_p=0.9, top_k=top_k, seed=seed)


def tiny_runner(name: str = "s2_tiny", slots: int = 2, pages: int = 16) -> CpuRunner:
    """``s1_tiny`` has no codec of its own in the test data; both have the same one."""
    config = read_config(DATA / name)
    weights = load_weights(DATA / name, config)
    model = DualAR(config, weights, range(275, 339), 265, packed=packs_linear())
    codec = load_codec(DATA / "s2_tiny")
    return CpuRunner(config, model, codec, slots=slots, pages=pages)


@pytest.fixture(scope="module")
def steps() -> Iterator[Steps]:
    runner = CpuRunner.load(BUILTIN, slots=SLOTS, pages=SLOTS * PAGES_EACH + 16)
    runner.warm_up()
    yield Steps(runner)
    runner.close()


@pytest.fixture
def tiny() -> Iterator[Steps]:
    runner = tiny_runner()
    runner.warm_up()
    yield Steps(runner)
    runner.close()


def test_it_is_a_runner_and_says_its_sizes(steps: Steps) -> None:
    runner: Runner = steps.runner
    spec = runner.spec
    assert (spec.codebooks, spec.frame_samples, spec.sample_rate) == (8, 1200, 24000)
    assert (spec.max_slots, spec.page_tokens, spec.max_positions) == (SLOTS, PAGE, 2048)
    assert (spec.pages, spec.end_token) == (SLOTS * PAGES_EACH + 16, 259)


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


# Batch invariance ---------------------------------------------------------------------------------


def test_products_of_this_machine_are_the_same_for_any_number_of_rows() -> None:
    config = read_config(BUILTIN)
    weights = load_weights(BUILTIN, config)
    model = DualAR(config, weights, range(320, 1344), 259, packed=packs_linear())
    if packs_linear():
        assert rows_are_independent(model, SLOTS)


@pytest.mark.parametrize("rows_vary", [True, False])
def test_codes_are_the_same_alone_and_among_any_neighbours(steps: Steps, rows_vary: bool) -> None:
    """Every batch size, every slot, every place in the batch."""
    state = steps.runner._state  # pyright: ignore[reportPrivateUsage]
    before = state.rows_vary
    state.rows_vary = rows_vary and before
    alone = [Turn(0, prompt_of(text), sampled(i)) for i, text in enumerate(TEXTS)]
    for turn in alone:
        steps.speak([turn], 25)
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
    state.rows_vary = before


def test_a_row_with_a_large_top_k_changes_nothing_for_others(steps: Steps) -> None:
    alone = [
        Turn(0, prompt_of(TEXTS[0]), sampled(1)),
        Turn(1, prompt_of(TEXTS[1]), sampled(2, 500)),
    ]
    for turn in alone:
        steps.speak([turn], 20)
    together = [
        Turn(4, prompt_of(TEXTS[0]), sampled(1)),
        Turn(3, prompt_of(TEXTS[1]), sampled(2, 500)),
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


def pools(runner: CpuRunner) -> list[torch.Tensor]:
    return [pool.clone() for pool in runner._pools]  # pyright: ignore[reportPrivateUsage]


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


@pytest.mark.parametrize("cuts", [(10,), (32, 64), (1, 2, 33), (50, 51)])
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
        torch.testing.assert_close(parts, whole, atol=2e-5, rtol=1e-4)


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
