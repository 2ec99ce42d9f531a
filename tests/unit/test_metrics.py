"""The metrics page: named once, split as promised, read from the engine when it is asked for."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.engine.api import EngineStats, TierStats, Timing
from shoal.realtime.metrics import TTFA_PARTS, Metrics


def values(metrics: Metrics) -> dict[str, float]:
    """Every sample of the page, as ``name{label}``."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.page().decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_the_engine_is_asked_at_each_scrape_and_not_before() -> None:
    asked: list[int] = []

    def stats() -> EngineStats:
        asked.append(1)
        return EngineStats(
            slots_busy=3,
            streams_waiting=2,
            oldest_wait_s=0.5,
            steps=len(asked),
            frames=7,
            last_step_s=0.02,
            min_lead_s=0.3,
            pages_used=5,
            pages_total=9,
            voices_waiting=4,
            voices_skipped=5,
            voices_refused=6,
        )

    metrics = Metrics(stats, slots=8)
    assert asked == []
    values(metrics)
    page = values(metrics)
    assert page["shoal_steps_total"] == 2
    assert (page["shoal_slots"], page["shoal_slots_busy"]) == (8, 3)
    assert (page["shoal_streams_waiting"], page["shoal_queue_age_seconds"]) == (2, 0.5)
    assert (page["shoal_step_seconds"], page["shoal_engine_lead_seconds"]) == (0.02, 0.3)
    assert (page["shoal_frames_total"], page["shoal_kv_pages"]) == (7, 9)
    voices = [
        page[f"shoal_voices_{name}"] for name in ("waiting", "skipped_total", "refused_total")
    ]
    assert voices == [4, 5, 6]


def test_every_tier_of_the_voice_cache_has_its_figures() -> None:
    tiers = [TierStats(*range(first, first + 7)) for first in (1, 11, 21, 31)]
    hot, warm, codes, cold = tiers
    stats = EngineStats(hot=hot, warm=warm, codes=codes, cold=cold)
    page = values(Metrics(lambda: stats, 1))
    for tier, first in (("hot", 1), ("warm", 11), ("codes", 21), ("cold", 31)):
        label = f"{{tier={tier}}}"
        gauges = [
            page[f"shoal_voice_{name}{label}"] for name in ("entries", "bytes", "limit_bytes")
        ]
        counters = [
            page[f"shoal_voice_{name}_total{label}"]
            for name in ("hits", "misses", "evictions", "promotions")
        ]
        assert gauges + counters == list(range(first, first + 7))


def test_time_to_first_audio_is_split_into_its_parts() -> None:
    metrics = Metrics(EngineStats, slots=1)
    metrics.first_audio(0.15, Timing(0.01, 0.02, 0.03, 0.04), send_s=0.05)
    page = values(metrics)
    assert page["shoal_ttfa_seconds_sum"] == pytest.approx(0.15)
    sums = [page[f"shoal_ttfa_part_seconds_sum{{part={part}}}"] for part in TTFA_PARTS]
    assert sums == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    assert sum(sums) == pytest.approx(0.15)


def test_an_engine_without_timing_still_counts_the_total() -> None:
    metrics = Metrics(EngineStats, slots=1)
    metrics.first_audio(0.15, None, send_s=0.05)
    page = values(metrics)
    assert page["shoal_ttfa_seconds_count"] == 1
    assert page["shoal_ttfa_part_seconds_count{part=wait}"] == 0


def test_two_servers_in_one_process_do_not_share_a_count() -> None:
    first, second = Metrics(EngineStats, 1), Metrics(EngineStats, 1)
    first.refusals.labels("busy").inc()
    assert values(first)["shoal_refusals_total{reason=busy}"] == 1
    assert "shoal_refusals_total{reason=busy}" not in values(second)
