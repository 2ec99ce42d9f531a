"""The player's simulation, on timelines worked out by hand."""

from __future__ import annotations

import pytest

from shoal.loadtest.measure.playout import Playout, play
from shoal.loadtest.measure.timeline import Arrival

RATE = 1000  # so that a sample is a millisecond


def arrivals(*at_and_ms: tuple[float, int]) -> list[Arrival]:
    return [Arrival(at_s, 2 * ms, ms) for at_s, ms in at_and_ms]


def played(
    *at_and_ms: tuple[float, int], prebuffer_s: float = 0.0, ended_s: float = 99.0
) -> Playout:
    playout = play(arrivals(*at_and_ms), RATE, prebuffer_s, ended_s)
    assert playout is not None
    return playout


def test_nothing_to_play_gives_no_playout() -> None:
    assert play([], RATE, 0.0, 1.0) is None
    assert play(arrivals((1.0, 0)), RATE, 0.0, 1.0) is None


def test_audio_ahead_of_its_time_never_stalls() -> None:
    playout = played((10.0, 100), (10.05, 100), (10.1, 100))
    assert playout.start_s == 10.0
    assert playout.stalls == ()
    # 100 ms in hand, 50 ms gone by; then 200 ms in hand, 100 ms gone by
    assert playout.min_lead_s == pytest.approx(0.05)
    assert playout.end_s == pytest.approx(10.3)


def test_a_late_chunk_is_a_stall_of_exactly_the_missing_time() -> None:
    playout = played((10.0, 100), (10.05, 100), (10.7, 100))
    (stall,) = playout.stalls
    assert stall.at_s == pytest.approx(10.2)
    assert stall.after_audio_s == pytest.approx(0.2)
    assert stall.length_s == pytest.approx(0.5)
    assert playout.min_lead_s == pytest.approx(-0.5)
    assert playout.end_s == pytest.approx(10.8)


def test_stalls_add_up_and_the_worst_is_kept() -> None:
    playout = played((0.0, 100), (0.3, 100), (0.5, 100), (0.9, 100))
    # dry at 0.1 until 0.3; dry at 0.4 until 0.5; dry at 0.6 until 0.9
    assert [s.length_s for s in playout.stalls] == pytest.approx([0.2, 0.1, 0.3])
    assert playout.total_stall_s == pytest.approx(0.6)
    assert playout.worst_stall_s == pytest.approx(0.3)
    # on a clock that never stops the last chunk comes 0.6 s too late
    assert playout.min_lead_s == pytest.approx(-0.6)


def test_a_prebuffer_starts_later_and_absorbs_a_gap() -> None:
    timeline = ((0.0, 100), (0.1, 100), (0.35, 100))
    assert [s.length_s for s in played(*timeline).stalls] == pytest.approx([0.15])
    with_prebuffer = played(*timeline, prebuffer_s=0.2)
    assert with_prebuffer.start_s == 0.1
    # starts at 0.1 with 200 ms, dry at 0.3, next at 0.35
    assert [s.length_s for s in with_prebuffer.stalls] == pytest.approx([0.05])
    assert with_prebuffer.min_lead_s == pytest.approx(-0.05)


def test_audio_shorter_than_the_prebuffer_plays_when_the_stream_ends() -> None:
    playout = played((1.0, 50), (1.1, 50), prebuffer_s=0.2, ended_s=1.4)
    assert playout.start_s == 1.4
    assert playout.stalls == ()
    assert playout.min_lead_s is None
    assert playout.end_s == pytest.approx(1.5)


def test_a_hole_below_the_clocks_grain_is_no_stall() -> None:
    playout = played((0.0, 100), (0.1004, 100))
    assert playout.stalls == ()
    assert playout.min_lead_s == pytest.approx(-0.0004)


def test_a_header_without_samples_does_not_start_the_player() -> None:
    playout = played((1.0, 0), (1.5, 100))
    assert playout.start_s == 1.5


def test_when_a_sample_is_heard_counts_the_stalls_before_it() -> None:
    playout = played((0.0, 100), (0.3, 100))
    assert playout.heard_at_s(0) == pytest.approx(0.0)
    assert playout.heard_at_s(99) == pytest.approx(0.099)
    assert playout.heard_at_s(150) == pytest.approx(0.35)


def test_waiting_for_text_is_a_pause_and_what_comes_after_it_in_time_is_no_stall() -> None:
    timeline = arrivals((0.0, 100), (0.5, 100), (0.6, 100))
    playout = play(timeline, RATE, 0.0, 9.0, lambda played_s: 0.45, resume_s=0.1)
    assert playout is not None
    assert playout.stalls == ()
    (pause,) = playout.pauses
    # dry at 0.1, text there at 0.45, audio at 0.5
    assert (pause.at_s, pause.after_audio_s) == (pytest.approx(0.1), pytest.approx(0.1))
    assert (pause.length_s, pause.resume_s) == (pytest.approx(0.4), pytest.approx(0.05))
    assert playout.min_lead_s == pytest.approx(0.0)
    assert playout.heard_at_s(100) == pytest.approx(0.5)
    assert playout.end_s == pytest.approx(0.7)


def test_a_server_that_is_slow_once_the_text_is_there_stalls_for_all_that_it_took() -> None:
    timeline = arrivals((0.0, 100), (0.8, 100))
    playout = play(timeline, RATE, 0.0, 9.0, lambda played_s: 0.45, resume_s=0.1)
    assert playout is not None
    (stall,), (pause,) = playout.stalls, playout.pauses
    assert (stall.at_s, stall.length_s) == (pytest.approx(0.45), pytest.approx(0.35))
    assert (pause.at_s, pause.length_s) == (pytest.approx(0.1), pytest.approx(0.35))
    assert playout.min_lead_s == pytest.approx(-0.35)
    assert playout.heard_at_s(100) == pytest.approx(0.8)


def test_text_that_was_there_in_time_excuses_nothing() -> None:
    timeline = arrivals((0.0, 100), (0.15, 100))
    for text_due in (None, lambda played_s: None, lambda played_s: 0.04):
        playout = play(timeline, RATE, 0.0, 9.0, text_due, resume_s=0.1)
        assert playout is not None
        assert [stall.length_s for stall in playout.stalls] == pytest.approx([0.05])
        assert playout.pauses == ()


def test_text_that_came_just_before_the_player_ran_dry_leaves_the_server_its_time() -> None:
    timeline = arrivals((0.0, 100), (0.15, 100))
    playout = play(timeline, RATE, 0.0, 9.0, lambda played_s: 0.06, resume_s=0.1)
    assert playout is not None
    assert playout.stalls == ()
    (pause,) = playout.pauses
    assert (pause.length_s, pause.resume_s) == (pytest.approx(0.05), pytest.approx(0.09))
