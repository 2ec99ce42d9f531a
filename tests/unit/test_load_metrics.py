"""One turn's figures from facts, each value worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.loadtest.measure.metrics import Fault, Figures, Rules, measure
from shoal.loadtest.measure.timeline import Arrival, Ending, Kind, SentenceEnd, Sound, Turn

RATE = 1000
RULES = Rules(requested_rate=RATE, text_s_per_char=0.02)

TURN = Turn(
    index=0,
    user=0,
    kind=Kind.WARM,
    scheduled_s=100.0,
    speakable_s=100.0,
    began_s=100.01,
    sent_s=100.01,
    text_done_s=100.01,
    ended_s=101.0,
    ending=Ending.FINISHED,
    chars=15,
    rate=RATE,
    arrivals=(
        Arrival(100.05, 44, 0),
        Arrival(100.08, 200, 100),
        Arrival(100.11, 200, 100),
        Arrival(100.50, 200, 100),
    ),
    sound=Sound(first_audible_sample=20, peak=9000, tail_dbfs=-80.0),
)


def figures(rules: Rules = RULES, **changes: object) -> Figures:
    return measure(replace(TURN, **changes), rules)  # type: ignore[arg-type]


def test_latency_counts_from_when_the_text_was_due_and_beside_it_from_when_it_left() -> None:
    f = figures()
    assert f.send_lag_s == pytest.approx(0.010)
    assert f.ttfb_s == pytest.approx(0.050)
    assert f.ttfa_s == pytest.approx(0.080)
    assert f.ttfa_sent_s == pytest.approx(0.070)


def test_a_header_is_a_first_byte_but_no_first_audio() -> None:
    f = figures(arrivals=(Arrival(100.2, 44, 0),), sound=Sound())
    assert f.ttfb_s == pytest.approx(0.2)
    assert f.ttfa_s is None
    assert f.audible_s is None


def test_audible_counts_leading_silence_and_playable_counts_the_stall_to_come() -> None:
    f = figures()
    assert f.audible_s == pytest.approx(0.080 + 0.020)
    # the last chunk comes 0.42 s after the start, with 0.2 s in hand
    assert f.playable_s == pytest.approx(0.080 + 0.22)


def test_paced_text_is_timed_from_its_first_sentence() -> None:
    f = figures(scheduled_s=99.5, speakable_s=100.0)
    assert f.ttfa_s == pytest.approx(0.080)
    assert f.ttfa_text_s == pytest.approx(0.580)


def test_audio_before_the_sentence_was_complete_counts_as_at_once() -> None:
    f = figures(scheduled_s=99.5, speakable_s=100.2)
    assert f.ttfa_s == 0.0
    assert f.ttfa_text_s == pytest.approx(0.580)


def test_rtf_gaps_jitter_and_length() -> None:
    f = figures()
    assert f.audio_s == pytest.approx(0.3)
    assert f.rtf == pytest.approx((100.50 - 100.01) / 0.3)
    assert f.gaps_s == pytest.approx((0.03, 0.39))
    # |0.03 - 0.1| and |0.39 - 0.1|
    assert f.jitter_s == pytest.approx((0.07 + 0.29) / 2)
    assert f.length_ratio == pytest.approx(0.3 / (15 * 0.02))


def test_each_prebuffer_has_its_own_playout() -> None:
    bare, small, large = figures().playouts
    assert (bare.prebuffer_s, small.prebuffer_s, large.prebuffer_s) == (0.0, 0.1, 0.2)
    assert bare.stalls == small.stalls == large.stalls == 1
    # without prebuffer it starts at .08, runs dry at .28; with 0.2 s it starts at .11, dry at .31
    assert bare.total_stall_s == pytest.approx(0.22)
    assert large.total_stall_s == pytest.approx(0.19)
    assert bare.min_lead_s == pytest.approx(-0.22)
    assert figures().playout(0.1) == small
    assert figures().playout(0.3) is None


def test_what_comes_after_a_barge_in_is_stale_and_in_no_other_figure() -> None:
    f = figures(ending=Ending.CUT, cut_s=100.2)
    assert f.audio_s == pytest.approx(0.2)
    assert f.stale_audio_s == pytest.approx(0.1)
    assert f.cut_tail_s == pytest.approx(0.3)
    assert f.playouts[0].stalls == 0
    assert f.rtf is None and f.length_ratio is None
    assert f.complete


def test_a_cut_that_silenced_the_server_at_once_has_no_tail() -> None:
    f = figures(ending=Ending.CUT, cut_s=100.6)
    assert f.cut_tail_s is None and f.stale_audio_s == 0


def test_sound_that_was_cut_before_it_was_heard_is_not_audible() -> None:
    late = Sound(first_audible_sample=190)
    assert figures(ending=Ending.CUT, cut_s=100.2, sound=late).audible_s is None


def test_an_honest_turn_has_no_fault() -> None:
    smooth = (Arrival(100.08, 400, 200), Arrival(100.2, 200, 100))
    assert figures(arrivals=smooth).faults == frozenset()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, Fault.STALL),
        ({"arrivals": ()}, Fault.NO_AUDIO),
        ({"ending": Ending.BROKEN}, Fault.NO_END),
        ({"ending": Ending.TIMEOUT}, Fault.NO_END),
        ({"declared_audio_s": 0.33}, Fault.SHORT_OF_DECLARED),
        ({"chars": 50}, Fault.SHORT_FOR_TEXT),
        ({"chars": 4}, Fault.LONG_FOR_TEXT),
        ({"sound": Sound(tail_dbfs=-20.0)}, Fault.ABRUPT_TAIL),
        ({"sound": Sound(clipped_samples=3)}, Fault.CLIPPED),
        ({"sound": Sound(leftover_bytes=1)}, Fault.LEFTOVER_BYTES),
        ({"sound": Sound(repeated_headers=1)}, Fault.REPEATED_HEADER),
    ],
)
def test_each_fault_is_named(changes: dict[str, object], fault: Fault) -> None:
    assert fault in figures(**changes).faults


def test_what_a_barge_in_does_to_a_stream_is_not_held_against_it() -> None:
    sound = Sound(tail_dbfs=-10.0, leftover_bytes=1)
    assert figures(ending=Ending.CUT, cut_s=100.2, sound=sound).faults == frozenset()


def test_a_header_with_another_rate_is_a_wrong_rate() -> None:
    rules = Rules(requested_rate=24000)
    f = figures(rules, header_rate=48000, rate=48000)
    assert f.rate_ratio == 2.0
    assert Fault.WRONG_RATE in f.faults


def test_bare_samples_at_another_rate_show_against_the_declared_length() -> None:
    rules = Rules(requested_rate=24000)
    second = (Arrival(100.1, 88200, 44100),)
    f = figures(rules, rate=24000, arrivals=second, declared_audio_s=1.0)
    assert f.rate_ratio == pytest.approx(44100 / 24000)
    assert Fault.WRONG_RATE in f.faults
    assert Fault.SHORT_OF_DECLARED not in f.faults


def test_missing_audio_is_not_taken_for_another_rate() -> None:
    rules = Rules(requested_rate=24000)
    most = (Arrival(100.1, 43200, 21600),)
    f = figures(rules, rate=24000, arrivals=most, declared_audio_s=1.0)
    assert f.rate_ratio == pytest.approx(0.9)
    assert Fault.WRONG_RATE not in f.faults
    assert Fault.SHORT_OF_DECLARED in f.faults


@pytest.mark.parametrize(
    ("cap_s", "parts", "faults"),
    [
        (None, 1, {Fault.LONG_FOR_TEXT, Fault.ABRUPT_TAIL}),
        (4.0, 1, set[Fault]()),
        (2.0, 2, set[Fault]()),
        (2.0, 3, set[Fault]()),
        # 4 s are not what a cap of 2 s makes of one sentence, nor are they one of 5 s cut off
        (2.0, 1, {Fault.LONG_FOR_TEXT, Fault.ABRUPT_TAIL}),
        (5.0, 1, {Fault.LONG_FOR_TEXT, Fault.ABRUPT_TAIL}),
    ],
)
def test_a_length_and_an_end_that_were_asked_for_are_no_faults(
    cap_s: float | None, parts: int, faults: set[Fault]
) -> None:
    four_s = (Arrival(100.1, 8000, 4000),)
    rules = replace(RULES, cap_s=cap_s)
    f = figures(rules, arrivals=four_s, parts=parts, sound=Sound(tail_dbfs=-10.0))
    assert f.faults == faults


def test_audio_before_its_sentence_was_whole_is_early() -> None:
    assert not figures().early
    early = figures(speakable_s=100.2, sent_s=100.2)
    assert early.early and early.ttfa_s == 0.0
    assert early.ttfa_text_s == pytest.approx(0.08)
    assert not figures(arrivals=()).early


def test_a_cap_excuses_nothing_else() -> None:
    sound = Sound(tail_dbfs=-10.0, clipped_samples=3, leftover_bytes=1)
    four_s = (Arrival(100.1, 2000, 1000), Arrival(103.1, 6000, 3000))
    f = figures(replace(RULES, cap_s=4.0), arrivals=four_s, sound=sound, declared_audio_s=4.1)
    assert f.faults == {
        Fault.CLIPPED, Fault.LEFTOVER_BYTES, Fault.STALL, Fault.SHORT_OF_DECLARED
    }  # fmt: skip
    broken = figures(
        replace(RULES, cap_s=4.0), arrivals=four_s[:1], sound=sound, ending=Ending.BROKEN
    )
    assert broken.faults >= {Fault.NO_END, Fault.ABRUPT_TAIL}


def test_a_pause_for_the_text_is_told_from_a_stall() -> None:
    # 100 letters a second of audio; the second sentence of 10 was whole at 100.30
    sentences = (SentenceEnd(100.0, 10), SentenceEnd(100.30, 20))
    timeline = (Arrival(100.05, 200, 100), Arrival(100.33, 200, 100))
    starved = figures(chars=20, sentences=sentences, arrivals=timeline)
    assert starved.faults == frozenset()
    # dry at 100.15, text at 100.30, audio 30 ms after it
    assert starved.pauses_s == pytest.approx((0.18,))
    assert starved.resumes_s == pytest.approx((0.03,))
    assert [p.stalls for p in starved.playouts] == [0, 0, 0]
    at_once = figures(chars=20, arrivals=timeline)
    assert at_once.pauses_s == () and at_once.playouts[0].total_stall_s == pytest.approx(0.18)
    late = (Arrival(100.05, 200, 100), Arrival(100.45, 200, 100))
    slow = figures(chars=20, sentences=sentences, arrivals=late)
    assert slow.playouts[0].total_stall_s == pytest.approx(0.15)
    assert Fault.STALL in slow.faults


def test_a_turn_that_was_refused_has_nothing_to_measure() -> None:
    f = figures(ending=Ending.REFUSED, began_s=None, sent_s=None, arrivals=(), sound=Sound())
    assert not f.complete
    assert f.ttfa_s is None and f.rtf is None and f.playouts == () and f.gaps_s == ()
