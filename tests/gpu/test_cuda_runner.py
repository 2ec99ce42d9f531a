"""The CUDA runner on a GPU, with the built-in voice: bits, isolation, and what the CPU says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from shoal.engine.config import BUILTIN_VOICE
from shoal.engine.cpu_runner import CpuRunner
from shoal.engine.cuda.load import GpuDtype
from shoal.engine.runner import StepPlan, VocodeBatch
from tests.steps import CONTEXT, Driver, builtin_runner, builtin_weights, prefilled

BUCKETS = (1, 8, 24, 64)
SLOTS = BUCKETS[-1]
VOICE = tuple(range(SLOTS * 6, SLOTS * 6 + 10))
PAGES = SLOTS * 6 + len(VOICE)
FRAMES = 24
TEXT = "The birch canoe slid on the smooth planks."


@pytest.fixture(scope="module")
def fp8() -> Iterator[Driver]:
    runner = builtin_runner("fp8", buckets=BUCKETS, pages=PAGES)
    yield Driver(runner)
    runner.close()


def test_a_stream_draws_the_same_alone_and_among_neighbours(fp8: Driver) -> None:
    """In every bucket, in any place of it."""
    alone = fp8.run((0,), (fp8.start(0, TEXT, 5),), FRAMES)
    for slots in ((0, 1), (3, 0, 5, 7, 2), tuple(range(20, -1, -1)), tuple(range(SLOTS))):
        joins = [
            fp8.start(slot, TEXT if slot == 0 else f"Neighbour number {slot}.", 5 + slot)
            for slot in slots
        ]
        among = fp8.run(slots, joins, FRAMES)
        assert np.array_equal(among[:, slots.index(0)], alone[:, 0]), slots


def test_who_else_is_on_a_voice_changes_no_bit(fp8: Driver) -> None:
    """A stream on a voice of its own, among strangers, and with so many that the voice is read once
    for all."""
    fp8.voice(VOICE, seed=1)
    alone = fp8.run((0,), (fp8.start_on(VOICE, 0, TEXT, 5),), FRAMES)
    everyone = tuple(range(SLOTS))
    for sharers, slots in (
        ((0,), everyone),
        (everyone[:24], everyone[:24]),
        (everyone[:40], everyone),
        (everyone, everyone),
    ):
        joins = fp8.company(VOICE, TEXT, slots, sharers)
        assert fp8.shares(joins) == (len(sharers) > 1)
        among = fp8.run(slots, joins, FRAMES)
        assert np.array_equal(among[:, 0], alone[:, 0]), (len(sharers), len(slots))


def test_a_recorded_step_is_what_its_kernels_compute_one_by_one(fp8: Driver) -> None:
    """Plain, and with a shared prefix; with and without programmatic launch."""
    for pdl in (False, True):
        runner = builtin_runner("fp8", buckets=BUCKETS, pages=PAGES, pdl=pdl, captured=False)
        single = Driver(runner)
        for driver in (fp8, single):
            driver.voice(VOICE, seed=1)
        slots = tuple(range(24))
        joins = [[d.start(slot, TEXT, 40 + slot) for slot in slots] for d in (fp8, single)]
        drawn = fp8.run(slots, joins[0], 8), single.run(slots, joins[1], 8)
        assert np.array_equal(*drawn)
        joins = [[d.start_on(VOICE, s, TEXT, 40 + s) for s in slots] for d in (fp8, single)]
        drawn = fp8.run(slots, joins[0], 8), single.run(slots, joins[1], 8)
        assert np.array_equal(*drawn)
        runner.close()


def test_programmatic_launch_changes_no_bit(fp8: Driver) -> None:
    runner = builtin_runner("fp8", buckets=(8,), pages=PAGES, pdl=False)
    late = Driver(runner)
    slots = tuple(range(8))
    for _ in range(5):
        joins = [[d.start(slot, TEXT, 40 + slot) for slot in slots] for d in (fp8, late)]
        early, plain = fp8.run(slots, joins[0], FRAMES), late.run(slots, joins[1], FRAMES)
        assert np.array_equal(plain, early)
    runner.close()


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_recorded_prefill_writes_what_single_launches_write(dtype: GpuDtype) -> None:
    """For lengths around the buckets and one beyond the last; and however it is cut."""
    weights = builtin_weights(dtype)
    spans = ((0, 400), (5, 1), (30, 16), (70, 17), (100, 100), (64, 300))
    untouched = [page for page in range(10) if page not in CONTEXT]
    after = prefilled(weights, "bf16", spans)
    for span, (recorded, single, cut) in zip(spans, after, strict=True):
        assert all(part.any() for part in recorded)
        assert not any(part[:, untouched].any() for part in recorded)
        assert all(map(torch.equal, single, recorded)), span
        assert all(map(torch.equal, cut, recorded)), span


def test_a_page_that_is_continued_is_copied_first(fp8: Driver) -> None:
    """A stream behind half a page that another owns draws what it draws behind its own."""
    drawn, again = fp8.behind_half_a_page(TEXT, 8)
    assert np.array_equal(drawn, again)


def test_a_third_step_waits_for_its_buffers(fp8: Driver) -> None:
    join = fp8.start(0, TEXT, 5)
    step = fp8.step
    fp8.runner.launch(StepPlan(step, (0,), (join,)))
    fp8.runner.launch(StepPlan(step + 1, (0,)))
    with pytest.raises(ValueError, match="was not collected"):
        fp8.runner.launch(StepPlan(step + 2, (0,)))
    fp8.runner.collect(step)
    fp8.runner.collect(step + 1)
    fp8.step = step + 2


def test_the_temperature_and_the_seed_are_obeyed(fp8: Driver) -> None:
    slots = tuple(range(24))

    def drawn(temperature: float) -> np.ndarray:
        joins = [fp8.start(slot, TEXT, 100 + slot, temperature) for slot in slots]
        return fp8.run(slots, joins, 12)

    cold, warm, hot = drawn(0.0), drawn(0.4), drawn(1.2)
    assert (cold == cold[:, :1]).all()
    distinct = [
        np.mean([len(np.unique(frame[:, 1])) for frame in part[:4]]) for part in (cold, warm, hot)
    ]
    assert distinct[0] == 1 < distinct[1] < distinct[2]
    assert np.array_equal(drawn(1.2), hot)


def test_bf16_draws_the_cpu_s_first_frames(fp8: Driver) -> None:
    cpu = CpuRunner.load(BUILTIN_VOICE, slots=8, pages=64)
    gpu = builtin_runner("bf16", buckets=(8,), pages=64)
    drawn = [Driver(runner) for runner in (cpu, gpu)]
    texts = ["Hi.", "Hello there.", TEXT, "Thank you very much."]
    first = [
        [d.run((0,), (d.start(0, text, 3),), 1)[0, 0].tolist() for text in texts] for d in drawn
    ]
    cpu.close()
    gpu.close()
    same = sum(a[0] == b[0] for a, b in zip(*first, strict=True))
    assert same >= 3, first  # a near tie may fall either way in bf16


def test_the_codec_streams_what_the_cpu_decodes(fp8: Driver) -> None:
    codes = np.random.default_rng(0).integers(0, 1000, (3, 12, 8), dtype=np.int32)
    cpu = CpuRunner.load(BUILTIN_VOICE, slots=8, pages=8)
    whole = cpu.vocode(VocodeBatch((0, 1, 2), codes, np.ones(3, np.bool_)))
    cpu.close()
    parts: list[np.ndarray] = []
    at = 0
    for frames in (1, 2, 1, 8):
        batch = VocodeBatch((4, 1, 6), codes[:, at : at + frames], np.full(3, at == 0))
        parts.append(fp8.runner.vocode(batch))
        at += frames
    error = np.concatenate(parts, 1).astype(np.float64) - whole
    assert np.abs(error).max() <= 0.01 * np.abs(whole).max()
