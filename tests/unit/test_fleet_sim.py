"""The fleet simulation finds what was planted, and says the same each time it is asked."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace
from math import factorial
from pathlib import Path

import numpy as np
import pytest

from shoal.deploy.autoscale import FleetSignal, Memory, Rules, decide
from shoal.loadtest.simulate.fleet import (
    Backfill,
    Gpu,
    Run,
    Scenario,
    fill,
    longest_refusal_s,
    percentile,
    simulate,
    ttfa,
)
from shoal.loadtest.simulate.policy import CpuPercent, Fixed, Signals, Traffic
from shoal.loadtest.simulate.study import compare
from shoal.loadtest.simulate.summary import as_html, as_table
from shoal.loadtest.simulate.trace import DAY_S, Day, arrivals, rate
from shoal.loadtest.simulate.voices import Voices, fleet_hit_share, hit_share
from shoal.realtime.cli import main

GPU = Gpu(capacity=10, start_s=(90.0, 90.0), drain_s=30.0)
SMALL = Day(peak_turns=1700.0)


def seen(**values: float) -> Signals:
    fields = {"now_s": 0.0, "replicas": 10, "ready": 10, "live_turns": 50.0, "capacity": 10.0}
    fields |= {"refusals_per_s": 0.0, "busy_share": 0.5, **values}
    return Signals(**fields)  # pyright: ignore[reportArgumentType]


# The day ------------------------------------------------------------------------------------------


def test_a_day_has_its_peak_its_night_and_bursts() -> None:
    calm = rate(replace(SMALL, bursts=0, noise=0.0), 1) * SMALL.turn_s
    assert len(calm) == DAY_S and calm.max() == pytest.approx(1700, rel=1e-3)
    assert 10.5 < calm.argmax() / 3600 < 20 and calm[4 * 3600] < 0.25 * 1700
    bursty = rate(replace(SMALL, noise=0.0), 1) * SMALL.turn_s / calm
    assert 1.3 < bursty.max() < 2.2 and bursty.min() == pytest.approx(1.0)
    drawn = arrivals(np.full(50_000, 4.0), 3)
    assert drawn.mean() == pytest.approx(4.0, rel=0.02) == pytest.approx(drawn.var(), rel=0.05)
    assert (arrivals(calm, 7) == arrivals(calm, 7)).all()


# The fleet ----------------------------------------------------------------------------------------


def test_a_fleet_that_is_too_small_loses_what_erlang_says() -> None:
    servers, offered, turn_s = 20, 18.0, 60.0
    lost = (offered**servers / factorial(servers)) / sum(
        offered**k / factorial(k) for k in range(servers + 1)
    )
    turns = arrivals(np.full(400_000, offered / turn_s), 5)
    gpu = replace(GPU, capacity=servers, wait_s=0.0)
    run = simulate(Scenario("one", Fixed(1)), turns, turn_s, gpu, 5)
    assert run.refused.sum() / turns.sum() == pytest.approx(lost, rel=0.06)
    assert run.live.mean() == pytest.approx(offered * (1 - lost), rel=0.02)


def test_a_gpu_serves_when_it_is_ready_and_is_paid_from_its_order_on_and_while_it_drains() -> None:
    def policy(signals: Signals, memory: object) -> tuple[int, tuple[()]]:
        return (3 if 100 <= signals.now_s < 400 else 1), ()

    run = simulate(Scenario("step", policy, begin=1), np.zeros(600, np.int64), 7.0, GPU, 1)
    assert list(np.flatnonzero(np.diff(run.paid)) + 1) == [100, 430]
    assert list(np.flatnonzero(np.diff(run.ready)) + 1) == [190, 400]
    assert (run.paid[[0, 150, 415, 599]] == [1, 3, 3, 1]).all() and run.starts == 2


def test_a_burst_is_refused_until_the_gpus_for_it_are_there() -> None:
    turns = np.concatenate([np.full(300, 10), np.full(600, 60)])  # 70 live turns, then 420
    policy = Traffic(Rules(start_s=90.0))
    run = simulate(Scenario("burst", policy), turns, 7.0, GPU, 1)
    refused = np.flatnonzero(run.refused)
    assert refused.min() >= 300 and refused.max() <= 300 + 90 + 60
    assert 20 < longest_refusal_s(run) <= 150
    assert run.ready[-1] >= 42 and run.refused[500:].sum() == 0


def test_turns_are_neither_lost_nor_doubled() -> None:
    turns = arrivals(np.full(2000, 9.0), 2)
    for policy in (Fixed(5), Fixed(8), Traffic(Rules(most=50))):
        run = simulate(Scenario("any", policy), turns, 7.0, GPU, 2)
        assert abs(run.admitted.sum() + run.refused.sum() - turns.sum()) <= turns[-1]
        assert (run.live <= np.maximum(run.paid, run.ready) * GPU.capacity).all()


# Policies -----------------------------------------------------------------------------------------


def test_ours_is_what_a_cluster_runs() -> None:
    rules = Rules(target_load=0.9, spare=1)
    wanted, memory = Traffic(rules)(seen(live_turns=90.0), None)
    asked = FleetSignal(at_s=0.0, replicas=10, live_turns=90.0, capacity=10.0, step_share=0.54)
    assert (wanted, memory) == decide(asked, Memory(), rules) and wanted == 11
    again = Traffic(rules)(seen(live_turns=45.0, now_s=5.0, replicas=11), memory)
    later = replace(asked, at_s=5.0, replicas=11, live_turns=45.0, step_share=0.27)
    assert again == decide(later, memory, rules)


def test_no_more_gpus_than_there_are_are_paid_for() -> None:
    turns = arrivals(np.concatenate([np.full(900, 60.0), np.full(900, 5.0)] * 3), 1)
    policy = Traffic(Rules(hold_s=60.0))
    run = simulate(Scenario("any", policy, most=50), turns, 7.0, GPU, 1)
    assert 45 < run.paid.max() <= 50 and run.ready.min() < 20


def test_cpu_percent_is_the_documented_rule() -> None:
    hpa = CpuPercent(target=0.6)
    assert hpa(seen(busy_share=0.9), ())[0] == 15
    assert hpa(seen(busy_share=0.65), ())[0] == 10, "within the tolerance"
    assert hpa(seen(busy_share=0.3), ((0.0, 12),))[0] == 12, "the most of five minutes"
    assert hpa(seen(now_s=400.0, busy_share=0.3), ((0.0, 12),))[0] == 5


# Voices, TTFA, batch work -------------------------------------------------------------------------


def test_the_share_of_hits_is_what_a_cache_has() -> None:
    voices = Voices(count=2000, exponent=1.0, kept=50)
    shares = voices.shares()
    rng = np.random.default_rng(4)
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    asked = rng.choice(len(shares), 60_000, p=shares).tolist()
    for index, voice in enumerate(asked):
        if voice in cache:
            cache.move_to_end(voice)
            hits += index >= 10_000
            continue
        cache[voice] = None
        if len(cache) > 50:
            cache.popitem(last=False)
    assert hit_share(shares, 50) == pytest.approx(hits / 50_000, abs=0.01)
    assert fleet_hit_share(voices, 1, True) == fleet_hit_share(voices, 8, False)
    assert fleet_hit_share(voices, 8, True) == hit_share(shares, 400) > 1.5 * hit_share(shares, 50)
    assert fleet_hit_share(voices, 40, True) == 1.0


def a_run(live: float, ready: float, late: float = 0.0, seconds: int = 100) -> Run:
    def full(value: float) -> np.ndarray:
        return np.full(seconds, value)

    return Run(
        "x", full(ready), full(ready), full(live), full(0), full(100), full(late), full(0), True
    )


def test_ttfa_is_made_of_load_misses_and_waits() -> None:
    gpu = replace(GPU, ttfa_idle_s=0.03, ttfa_full_s=0.08, ttfa_spread=0.0, miss_s=0.2)
    known = Voices(count=10, kept=10)
    assert percentile(ttfa(a_run(0, 10), gpu, known, None), 50) == pytest.approx(0.03, abs=1e-3)
    full = ttfa(a_run(100, 10), gpu, known, None)
    assert percentile(full, 5) == percentile(full, 99) == pytest.approx(0.08, abs=1e-3)
    assert full.sum() == pytest.approx(10_000)
    late = ttfa(a_run(100, 10, late=10.0), gpu, known, None)
    assert percentile(late, 89) < 0.09 and percentile(late, 91) == pytest.approx(0.58, abs=2e-3)
    cold = ttfa(a_run(0, 1), gpu, Voices(count=10**5, exponent=0.0, kept=1), None)
    assert percentile(cold, 50) == pytest.approx(0.23, abs=1e-3)
    run = a_run(0, 10)
    fill(run, gpu, Backfill())
    beside = ttfa(run, gpu, known, Backfill(step_s=0.01))
    assert percentile(beside, 50) == pytest.approx(0.04, abs=1e-3)


def test_batch_work_takes_what_is_left_and_pays_for_being_parked() -> None:
    run = a_run(30, 10)
    run.live[50:] = 80
    fill(run, GPU, Backfill(reserve=0.05, item_s=8.0, redo_s=2.0))
    assert set(run.backfill[:50]) == {65.0} and set(run.backfill[50:]) == {15.0}
    # 50 had to go within a second, an eighth of 65 was at its end.
    assert run.wasted.sum() == pytest.approx(min(15.0, 2.0 * (50 - 65 / 8)))
    assert run.wasted[50] == run.wasted.sum()


# The study ----------------------------------------------------------------------------------------


def test_the_study_says_the_same_again_and_what_it_is_for() -> None:
    study = compare(SMALL, GPU, Backfill(), 320, 1)
    assert study == compare(SMALL, GPU, Backfill(), 320, 1)
    assert (arrivals(rate(SMALL, 1), 1) != arrivals(rate(SMALL, 2), 2)).any()
    runs = {run["name"]: run for run in study["runs"]}
    ours, everything = runs["live traffic"], runs["fixed, all"]
    assert everything["refused_share"] == 0 and everything["gpu_hours"] == 320 * 24
    assert ours["gpu_hours"] < 0.6 * everything["gpu_hours"] and ours["refused_share"] < 0.002
    assert ours["utilisation"] > 1.6 * everything["utilisation"]
    assert all(run["utilisation"] < run["utilisation_with_backfill"] < 1 for run in runs.values())
    assert ours["utilisation_with_backfill"] > 0.9
    assert runs["live traffic, load 0.9"]["gpu_hours"] < ours["gpu_hours"]
    assert all(run["gpus_most"] <= 320 for run in runs.values())
    page = as_html(study)
    assert page.count("<svg") == 4 and "http" not in page.replace("http-equiv", "")
    assert all(name in as_table(study) for name in runs)


def test_the_command_writes_its_figures_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fleet"
    assert main(["load", "fleet", "--gpus", "40", "--capacity", "8", "--out", str(out)]) == 0
    found = json.loads((out / "fleet.json").read_text())
    assert found["gpus"] == 40 and found["kind"] == "simulation"
    assert (out / "fleet.html").read_text().startswith("<!doctype html>")
    assert "with batch" in capsys.readouterr().out
    assert main(["load", "fleet", "--gpus", "0", "--out", str(out)]) == 2
