"""From takes to figures: right values for takes made by hand."""

from __future__ import annotations

import pytest

from shoal.loadtest.bench_turn import Plan, figures, table
from shoal.loadtest.measure.timeline import Arrival
from shoal.loadtest.one_turn import Take

RATE = 1000
PLAN = Plan(turns=2, streams=2, realtime_turns=1, prebuffer_s=0.2)


def take(sent_s: float, arrivals: list[tuple[float, int]], ended_s: float) -> Take:
    """Arrivals are (seconds after sending, samples)."""
    came = tuple(Arrival(sent_s + at, 2 * n, n) for at, n in arrivals)
    return Take(sent_s, ended_s, RATE, came, bytes(2 * sum(n for _, n in arrivals)))


def test_figures_of_takes_made_by_hand() -> None:
    single = [take(0, [(0.1, 500), (0.3, 1500)], 0.5), take(1, [(0.3, 2000)], 1.5)]
    together = [take(10, [(0.2, 3000)], 11.5), take(10, [(0.4, 3000)], 12)]
    again = [take(15, [(0.2, 1500)], 16), take(15, [(0.2, 1500)], 16)]
    smooth = take(20, [(0.1, 300), (0.3, 1000)], 20.4)
    # 300 ms in hand at 0.1 s are gone at 0.4 s; the next samples come 0.25 s later.
    holed = take(30, [(0.1, 300), (0.65, 1000)], 30.7)
    found = figures(PLAN, single, [single[1]], [together, again], [smooth, holed])
    assert found.ttfa_p50_s == pytest.approx(0.2)
    assert found.ttfa_max_s == pytest.approx(0.3)
    assert found.ttfa_unflushed_p50_s == pytest.approx(0.3)
    assert found.single_rtf == pytest.approx(1.0 / 4.0)
    assert found.single_speed == pytest.approx(4.0)
    assert found.together_speed == pytest.approx((6.0 + 3.0) / (2.0 + 1.0))
    assert found.batch_gain == pytest.approx(0.75)
    assert found.stalls == 1
    assert found.worst_stall_s == pytest.approx(0.25)
    assert found.realtime_audio_s == pytest.approx(2.6)
    assert found.min_lead_s == pytest.approx(-0.25)
    assert "1 in 3 s of audio, worst 250 ms" in table(found, PLAN.prebuffer_s)


def test_a_take_without_audio_has_no_first_audio() -> None:
    silent = take(5, [], 6)
    assert silent.ttfa_s == float("inf")
    assert silent.rtf == float("inf")
