"""Voices through all tiers of a whole engine with a real model: hot, warm, codes, cold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from shoal.engine.api import EngineStats, Opened, Reference, Sampling, Voice
from shoal.engine.config import EngineConfig, Limits
from shoal.engine.cpu_runner import CpuRunner
from shoal.engine.loading import load_model
from shoal.engine.runner import PrefillChunk
from shoal.engine.service import SpeechEngine
from tests.live import Live, Recording
from tests.unit.test_engine_tiny import TINY, wav

NONE_IDLE = Limits(prefix_bytes=0)
"""Voices that nobody uses go as soon as another comes."""
TEXT = "The amber boat crosses the fjord."


def live_on(config: EngineConfig) -> tuple[Live, CpuRunner]:
    loaded = load_model(config, lambda _: None)
    assert isinstance(loaded.runner, CpuRunner)
    runner = Recording(loaded.runner)
    engine = SpeechEngine(config, model=replace(loaded, runner=runner))
    return Live(engine, runner), loaded.runner


def voice(number: int) -> Voice:
    return Voice(references=(Reference(wav(100.0 + 40 * number, 2.0), f"Voice {number}."),))


def say(engine: Live, number: int, seed: int) -> list[tuple[int, ...]]:
    """The columns that the voice draws, as many as are certain; all that is to be saved is."""
    stream = engine.speak(TEXT, Sampling(seed=seed, max_frames_per_segment=12), voice(number))
    engine.wait(stream)
    engine.quiet()
    assert isinstance(engine.takes[stream].events[0], Opened)
    return engine.runner.codes.pop(seed)[:12]


def settles(engine: Live, holds: Callable[[EngineStats], bool]) -> None:
    until = time.monotonic() + 20.0
    while not holds(engine.engine.stats()):
        assert time.monotonic() < until, engine.engine.stats()
        time.sleep(0.005)


def test_a_voice_that_comes_back_has_the_bits_of_a_fresh_prefill() -> None:
    engine, runner = live_on(EngineConfig(model=TINY, device="cpu", slots=2, limits=NONE_IDLE))
    try:
        first = say(engine, 0, 1)
        settles(engine, lambda stats: stats.warm.promotions == 1)
        (columns,) = [c for c in engine.runner.prefills if c.position == 0 and len(c.columns) > 40]
        say(engine, 1, 2)
        settles(engine, lambda stats: stats.warm.promotions == 2)
        assert engine.engine.stats().hot.entries == 2, "the default voice's, and the last one"
        count = len([c for c in engine.runner.prefills if c.position == 0])
        again = say(engine, 0, 1)
        assert again == first
        assert len([c for c in engine.runner.prefills if c.position == 0]) == count
        (pages,) = engine.runner.loaded
        stats = engine.engine.stats()
        assert (stats.warm.hits, stats.warm.entries) == (1, 2)
        assert 0 < stats.warm.bytes <= stats.warm.limit_bytes
        spare = tuple(range(runner.spec.pages - len(pages), runner.spec.pages))
        assert set(spare).isdisjoint(pages)
        runner.prefill(PrefillChunk(columns.columns, 0, spare))
        for pool in runner.kv_pools:
            one, other = (
                positions(pool, table, len(columns.columns), runner) for table in (pages, spare)
            )
            assert torch.equal(one, other)
    finally:
        engine.engine.stop()


def positions(
    pool: torch.Tensor, table: tuple[int, ...], length: int, runner: CpuRunner
) -> torch.Tensor:
    size = runner.spec.page_tokens
    places = np.concatenate([np.arange(page * size, (page + 1) * size) for page in table])
    return pool[:, places[:length].tolist()]


def test_every_tier_is_used_and_counted_and_the_disk_outlives_the_process(tmp_path: Path) -> None:
    config = EngineConfig(model=TINY, device="cpu", slots=2, limits=NONE_IDLE, voices_dir=tmp_path)
    engine, _ = live_on(config)
    try:
        first = say(engine, 0, 1)
        settles(engine, lambda stats: stats.warm.promotions == 1)
        stats = engine.engine.stats()
        assert (stats.encoded, stats.cold.entries, stats.codes.entries) == (1, 1, 1)
    finally:
        engine.engine.stop()
    engine, _ = live_on(config)
    try:
        assert say(engine, 0, 1) == first
        settles(engine, lambda stats: stats.warm.promotions == 1)
        stats = engine.engine.stats()
        assert (stats.encoded, stats.cold.hits, stats.codes.hits, stats.warm.hits) == (0, 1, 0, 0)
        assert say(engine, 0, 1) == first
        stats = engine.engine.stats()
        assert (stats.hot.hits, stats.codes.hits, stats.warm.hits) == (1, 1, 0)
        say(engine, 1, 2)
        assert say(engine, 0, 1) == first
        stats = engine.engine.stats()
        assert (stats.hot.hits, stats.codes.hits, stats.warm.hits) == (1, 2, 1)
    finally:
        engine.engine.stop()


def test_without_memory_for_it_a_voice_is_prefilled_again() -> None:
    config = EngineConfig(model=TINY, device="cpu", slots=2, limits=NONE_IDLE, warm_voice_bytes=0)
    engine, runner = live_on(config)
    try:
        assert runner.spec.host_pages == 0
        first = say(engine, 0, 1)
        say(engine, 1, 2)
        assert say(engine, 0, 1) == first
        assert (engine.runner.saved, engine.runner.loaded) == ([], [])
        assert engine.engine.stats().warm.limit_bytes == 0
    finally:
        engine.engine.stop()
