"""Totals over turns, processes and repeats; and the SLO judged on them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from shoal.loadtest.measure.metrics import Fault, Figures, PlayoutFigures
from shoal.loadtest.measure.slo import Slo, judge
from shoal.loadtest.measure.timeline import Ending, Kind
from shoal.loadtest.measure.totals import Totals, prebuffer_name
from shoal.loadtest.report.totals_json import as_json

SLO = Slo(ttfa_s=0.1, percentile=95.0)


def playout(prebuffer_s: float, *stalls_s: float, lead_s: float = 0.05) -> PlayoutFigures:
    return PlayoutFigures(
        prebuffer_s, len(stalls_s), sum(stalls_s), max(stalls_s, default=0.0), lead_s
    )


GOOD = Figures(
    ending=Ending.FINISHED,
    kind=Kind.WARM,
    send_lag_s=0.001,
    ttfb_s=0.040,
    ttfa_s=0.050,
    ttfa_sent_s=0.049,
    ttfa_text_s=0.050,
    audible_s=0.060,
    playable_s=0.050,
    connect_s=None,
    prepare_s=None,
    audio_s=2.0,
    length_ratio=1.0,
    rtf=0.2,
    gaps_s=(0.1, 0.3),
    pauses_s=(),
    resumes_s=(),
    jitter_s=0.01,
    playouts=(playout(0.0), playout(0.1)),
    rate_ratio=None,
    cut_tail_s=None,
    stale_audio_s=0.0,
    faults=frozenset(),
)
STALLED = replace(
    GOOD, playouts=(playout(0.0, 0.2, 0.1, lead_s=-0.3), playout(0.1)), faults={Fault.STALL}
)
LATE = replace(GOOD, ttfa_s=0.150)
REFUSED = replace(
    GOOD, ending=Ending.REFUSED, ttfa_s=None, audible_s=None, audio_s=0.0, playouts=(), gaps_s=()
)


def totals(*figures: Figures, slo: Slo = SLO) -> Totals:
    found = Totals(slo, frame_s=0.05, window_s=10.0, window_audio_s=sum(f.audio_s for f in figures))
    for one in figures:
        found.add(one, {}, "HTTP 429" if one.ending is Ending.REFUSED else "")
    return found


@pytest.mark.parametrize(
    ("figures", "good"),
    [
        (GOOD, True),
        (LATE, False),
        (STALLED, False),
        (REFUSED, False),
        (replace(GOOD, ending=Ending.CUT), True),
        (replace(GOOD, ending=Ending.CUT, ttfa_s=None, playouts=()), True),
        (replace(GOOD, ttfa_s=None, playouts=()), False),
        (replace(GOOD, ttfa_s=0.1), True),
    ],
)
def test_goodput_is_in_time_without_a_stall(figures: Figures, good: bool) -> None:
    assert SLO.good(figures) is good


def test_a_prebuffer_in_the_promise_forgives_what_it_absorbs() -> None:
    assert Slo(prebuffer_s=0.1).good(STALLED)


def test_counts_and_rates() -> None:
    found = totals(GOOD, LATE, STALLED, REFUSED)
    assert (found.turns, found.good, found.failed, found.refused) == (4, 1, 1, 1)
    assert found.goodput == 0.25
    assert found.good_turns_per_s == pytest.approx(0.1)
    # 6 s of audio in 10 s, frames of 50 ms
    assert found.audio_s_per_s == pytest.approx(0.6)
    assert found.frames_per_s == pytest.approx(12.0)
    assert found.errors == {"HTTP 429": 1}
    assert found.faults == {"stall": 1}


def test_stalls_are_kept_by_prebuffer() -> None:
    found = totals(GOOD, STALLED, STALLED)
    assert found.stalled == {"0ms": 2, "100ms": 0}
    assert found.stalls == {"0ms": 4, "100ms": 0}
    assert found.total_stall_s["0ms"] == pytest.approx(0.6)
    assert found.worst_stall_s == {"0ms": 0.2, "100ms": 0.0}
    assert found.min_lead_s == {"0ms": -0.3, "100ms": 0.05}
    assert prebuffer_name(0.2) == "200ms"


def test_cold_turns_are_beside_and_not_in_the_warm_figures() -> None:
    found = totals(GOOD, replace(GOOD, kind=Kind.COLD, ttfa_s=0.9, connect_s=0.3))
    assert (found.turns, found.cold_turns) == (1, 1)
    assert found.percentiles("ttfa")["max"] == pytest.approx(0.05, rel=1e-3)
    assert found.percentiles("cold_ttfa")["p50"] == pytest.approx(0.9, rel=1e-3)
    assert found.percentiles("connect")["p50"] == pytest.approx(0.3, rel=1e-3)


def test_early_turns_are_counted_and_told() -> None:
    found = totals(GOOD, replace(GOOD, early=True, ttfa_s=0.0))
    found.merge(totals(replace(GOOD, early=True)))
    assert found.early == as_json(found)["early_turns"] == 2


def test_a_turn_that_ends_well_but_says_nothing_has_failed() -> None:
    mute = replace(
        GOOD, ttfa_s=None, audible_s=None, audio_s=0.0, playouts=(), gaps_s=(),
        faults=frozenset({Fault.NO_AUDIO}),
    )  # fmt: skip
    found = totals(GOOD, mute)
    assert (found.turns, found.good, found.failed) == (2, 1, 1)
    assert found.errors == {"no audio": 1}
    assert not found.verdict().kept and "1 of 2 turns failed" in found.verdict().reasons[0]
    twice = totals(GOOD, mute)
    twice.merge(found)
    assert twice.failed == 2


def test_a_cold_turn_that_failed_is_an_error_but_breaks_no_promise_of_the_warm() -> None:
    found = totals(GOOD, replace(REFUSED, kind=Kind.COLD))
    assert found.errors == {"cold turn: HTTP 429": 1}
    assert found.verdict().kept


def test_merging_processes_shares_the_window_and_appending_repeats_adds_it() -> None:
    side_by_side, in_turn = totals(GOOD), totals(GOOD)
    side_by_side.merge(totals(LATE, STALLED))
    in_turn.append(totals(LATE, STALLED))
    for both in (side_by_side, in_turn):
        assert (both.turns, both.good) == (3, 1)
        assert both.percentiles("ttfa")["max"] == pytest.approx(0.15, rel=1e-3)
        assert both.min_lead_s["0ms"] == -0.3
    assert side_by_side.window_s == 10.0
    assert side_by_side.audio_s_per_s == pytest.approx(0.6)
    assert in_turn.window_s == 20.0
    assert in_turn.audio_s_per_s == pytest.approx(0.3)


def test_a_thousand_kinds_of_error_do_not_grow_the_table() -> None:
    found = totals()
    for n in range(1000):
        found.add(REFUSED, {f"stage {n}": 0.1}, f"error {n}")
    assert len(found.errors) <= 51
    assert sum(found.errors.values()) == 1000
    assert len(found.stages) <= 40


def test_totals_travel_between_processes() -> None:
    found = totals(GOOD, STALLED)
    copy: Totals = pickle.loads(pickle.dumps(found))
    assert as_json(copy) == as_json(found)


def test_json_names_what_is_missing_as_zero_and_leaves_out_the_unmeasured() -> None:
    found = as_json(totals(GOOD))
    assert found["faults"]["wrong_sample_rate"] == 0
    assert found["percentiles"]["ttfa"]["p99.9"] == pytest.approx(0.05, rel=1e-3)
    assert "cold_ttfa" not in found["percentiles"]
    assert found["slo_kept"] is True


def test_the_verdict_gives_its_reasons() -> None:
    assert totals(GOOD, GOOD).verdict().kept
    verdict = totals(LATE, STALLED, REFUSED).verdict()
    assert not verdict.kept
    assert len(verdict.reasons) == 3
    assert "TTFA p95" in verdict.reasons[0]
    assert "1 of 3 turns stalled" in verdict.reasons[1]
    assert "1 of 3 turns failed or refused" in verdict.reasons[2]


def test_nothing_measured_keeps_no_promise() -> None:
    assert not judge(SLO, None, 0, 0, 0).kept
    assert judge(SLO, None, 5, 0, 0).reasons == ("no turn had audio",)


def test_shares_may_be_allowed() -> None:
    lenient = Slo(stalled_share=0.01, failed_share=0.01)
    assert judge(lenient, 0.1, 100, 1, 1).kept
    assert not judge(lenient, 0.1, 100, 2, 1).kept
    assert not judge(lenient, 0.1001, 100, 0, 0).kept
