"""Every fault that the stand-in plants is reported with its size.

Truth is the stand-in's own record, taken by the same clock just before each chunk left. How far a
report may be off is measured too: the most by which this loaded event loop was ever late during
the test, and a few milliseconds for the sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from shoal.loadtest.drive.line import Line, LineCounts, LineRules, now_s
from shoal.loadtest.drive.saturation import LoopWatch
from shoal.loadtest.measure.metrics import Fault, Figures, Rules, measure
from shoal.loadtest.measure.playout import play
from shoal.loadtest.measure.timeline import Arrival, Ending, Kind, Turn
from shoal.loadtest.plan.text import Piece
from shoal.loadtest.plan.turn_plan import TurnPlan
from shoal.loadtest.plan.voices import Voice
from shoal.loadtest.stand_in.lie import End, Lie
from shoal.loadtest.stand_in.server import standing_in
from shoal.loadtest.stand_in.truth import Truth
from shoal.loadtest.targets import find_target
from shoal.loadtest.targets.target import TargetOptions

RATE = 24000
SHORT = Lie(audio_s=0.3)


@dataclass(frozen=True)
class Heard:
    """One turn as the tool saw it, as it really was, and how far the two may be apart."""

    turn: Turn
    figures: Figures
    truth: Truth
    grain_s: float

    def same(self, reported_s: float | None, true_s: float) -> None:
        assert reported_s is not None
        assert abs(reported_s - true_s) <= self.grain_s, (reported_s, true_s, self.grain_s)


async def hear(
    lies: Sequence[Lie],
    target: str = "shoal",
    container: str = "pcm",
    kind: Kind = Kind.WARM,
    ahead_s: float = 0.0,
    cut_after_s: float | None = None,
    timeout_s: float = 5.0,
    cut_watch_s: float = 0.1,
    text: str = "Hello there.",
    cap_s: float | None = None,
    **settings: str,
) -> list[Heard]:
    """One turn a lie, one after another on one line."""
    found: list[tuple[Turn, Truth]] = []
    watch = LoopWatch()
    watching = asyncio.create_task(watch.run())
    async with standing_in(lies) as server:
        url = server.http_url if target == "openai" else server.ws_url
        options = TargetOptions(url, container=container, rate=RATE, extra=settings)
        rules = LineRules(turn_timeout_s=timeout_s, cut_watch_s=cut_watch_s)
        line = Line(find_target(target)(options), options, rules, LineCounts(), lambda _, __: None)
        for number in range(len(lies)):
            pieces = (Piece(0.0, text),)
            due_s = now_s() + ahead_s
            plan = TurnPlan(number, 0, kind, due_s, pieces, Voice(), cut_after_s)
            spoken = await line.speak(plan)
            found.append((spoken.turn, server.ledger.turns[-1]))
        await line.close()
    watching.cancel()
    grain_s = 0.006 + 2 * watch.take_worst_s()
    rules_ = Rules(requested_rate=RATE, text_s_per_char=0.3 / 11, cap_s=cap_s)
    return [Heard(turn, measure(turn, rules_), truth, grain_s) for turn, truth in found]


async def one(lie: Lie, **how: object) -> Heard:
    return (await hear([lie], **how))[0]  # type: ignore[arg-type]


def true_ttfa_s(heard: Heard) -> float:
    assert heard.truth.text_s is not None
    return heard.truth.sent_s[0] - heard.truth.text_s


def true_arrivals(truth: Truth) -> list[Arrival]:
    pairs = zip(truth.sent_s, truth.sent_samples, strict=True)
    return [Arrival(at_s, 2 * samples, samples) for at_s, samples in pairs]


async def test_an_honest_turn_has_no_fault() -> None:
    heard = await one(SHORT)
    assert heard.turn.ending is Ending.FINISHED
    assert heard.figures.faults == frozenset()
    assert heard.figures.audio_s == pytest.approx(0.3)
    assert heard.figures.length_ratio == pytest.approx(1.0)


async def test_first_audio_is_as_late_as_planted() -> None:
    for heard in await hear([replace(SHORT, first_delay_s=d) for d in (0.0, 0.04, 0.2)]):
        f = heard.figures
        assert f.ttfa_sent_s is not None and f.ttfa_s is not None
        assert f.ttfa_sent_s >= heard.truth.lie.first_delay_s
        heard.same(f.ttfa_sent_s, true_ttfa_s(heard))
        heard.same(f.ttfa_s, heard.truth.sent_s[0] - heard.turn.scheduled_s)
        heard.same(f.ttfb_s, f.ttfa_s)


async def test_no_arrival_is_stamped_before_it_left() -> None:
    heard = await one(replace(SHORT, audio_s=1.0, pace=0.5))
    for arrival, left_s in zip(heard.turn.arrivals, heard.truth.sent_s, strict=True):
        assert left_s <= arrival.at_s <= left_s + heard.grain_s


async def test_a_late_connect_is_the_cold_turns_and_not_the_prepared_ones() -> None:
    lie = replace(SHORT, accept_delay_s=0.25, first_delay_s=0.05)
    cold = await one(lie, kind=Kind.COLD)
    assert cold.truth.accepted_s is not None and cold.truth.asked_s is not None
    cold.same(cold.figures.connect_s, cold.truth.accepted_s - cold.truth.asked_s)
    cold.same(cold.figures.ttfa_s, cold.truth.sent_s[0] - cold.turn.scheduled_s)
    assert cold.figures.ttfa_s is not None and cold.figures.ttfa_s >= 0.30
    warm = await one(lie, ahead_s=0.6)
    assert warm.figures.connect_s is not None and warm.figures.connect_s >= 0.25
    warm.same(warm.figures.ttfa_sent_s, true_ttfa_s(warm))


async def test_a_line_that_is_not_ready_when_the_turn_is_due_costs_the_turn() -> None:
    heard = await one(replace(SHORT, accept_delay_s=0.4), ahead_s=0.1)
    assert heard.figures.ttfa_s is not None and heard.figures.ttfa_s >= 0.28
    heard.same(heard.figures.ttfa_s, heard.truth.sent_s[0] - heard.turn.scheduled_s)
    heard.same(heard.figures.send_lag_s, (heard.turn.sent_s or 0.0) - heard.turn.scheduled_s)


async def test_a_gap_is_a_stall_of_the_part_that_nothing_covered() -> None:
    heard = await one(Lie(audio_s=0.8, gaps_s={3: 0.5}))
    truth = heard.truth
    bare = heard.figures.playouts[0]
    assert bare.stalls == 1
    # three chunks of 100 ms were in hand when the gap began
    heard.same(bare.total_stall_s, truth.sent_s[3] - truth.sent_s[0] - 0.3)
    heard.same(bare.worst_stall_s, bare.total_stall_s)
    heard.same(bare.min_lead_s, -bare.total_stall_s)
    assert heard.figures.faults == {Fault.STALL}
    heard.same(max(heard.figures.gaps_s), truth.sent_s[3] - truth.sent_s[2])
    heard.same(heard.figures.playable_s, (heard.figures.ttfa_s or 0.0) + bare.total_stall_s)


async def test_every_prebuffer_stalls_as_the_true_timeline_does() -> None:
    heard = await one(Lie(audio_s=1.2, pace=0.9, gaps_s={4: 0.25, 8: 0.3}))
    for reported in heard.figures.playouts:
        true = play(true_arrivals(heard.truth), RATE, reported.prebuffer_s, heard.turn.ended_s)
        assert true is not None and true.min_lead_s is not None
        heard.same(reported.total_stall_s, true.total_stall_s)
        heard.same(reported.worst_stall_s, true.worst_stall_s)
        heard.same(reported.min_lead_s, true.min_lead_s)
    bare, _, large = heard.figures.playouts
    assert bare.total_stall_s > large.total_stall_s + 0.05


async def test_a_header_sent_ahead_is_a_first_byte_and_no_first_audio() -> None:
    lie = replace(SHORT, first_delay_s=0.25, header_ahead_s=0.2)
    heard = await one(lie, container="wav")
    assert heard.truth.header_s is not None
    heard.same(heard.figures.ttfb_s, heard.truth.header_s - heard.turn.scheduled_s)
    heard.same(heard.figures.ttfa_s, heard.truth.sent_s[0] - heard.turn.scheduled_s)
    assert heard.truth.sent_s[0] - heard.truth.header_s >= 0.2


async def test_leading_silence_delays_what_is_audible_by_its_length() -> None:
    heard = await one(replace(SHORT, leading_silence_s=0.15))
    assert heard.figures.audible_s is not None and heard.figures.ttfa_s is not None
    assert heard.figures.audible_s - heard.figures.ttfa_s == pytest.approx(0.15, abs=0.001)


async def test_a_truncated_tail_is_missing_by_its_length() -> None:
    heard = await one(Lie(audio_s=1.0, cut_short_s=0.23))
    assert heard.turn.declared_audio_s == pytest.approx(1.0)
    assert heard.figures.audio_s == pytest.approx(0.77)
    assert heard.figures.faults >= {Fault.SHORT_OF_DECLARED, Fault.ABRUPT_TAIL}


async def test_a_truncation_that_nobody_declares_shows_in_the_sound_and_against_the_text() -> None:
    heard = await one(Lie(audio_s=0.3, cut_short_s=0.2, declare_length=False))
    assert heard.figures.length_ratio == pytest.approx(0.1 / 0.3, abs=0.01)
    assert heard.figures.faults == {Fault.SHORT_FOR_TEXT, Fault.ABRUPT_TAIL}


@pytest.mark.parametrize("target", ["shoal", "openai", "elevenlabs", "deepgram"])
async def test_a_turn_without_a_sample_has_failed_though_it_ends_well(target: str) -> None:
    heard = await one(Lie(audio_s=0.3, cut_short_s=0.3, declare_length=False), target=target)
    assert heard.turn.ending is Ending.FINISHED
    assert heard.figures.faults >= {Fault.NO_AUDIO} and not heard.figures.complete
    assert heard.figures.ttfa_s is None


@pytest.mark.parametrize(
    ("lie", "fault"),
    [
        (replace(SHORT, abrupt=True, declare_length=False), Fault.ABRUPT_TAIL),
        (replace(SHORT, clipped=True), Fault.CLIPPED),
        (replace(SHORT, odd_byte=True), Fault.LEFTOVER_BYTES),
    ],
)
async def test_broken_sound_is_named(lie: Lie, fault: Fault) -> None:
    assert (await one(lie)).figures.faults == {fault}


@pytest.mark.parametrize(
    ("target", "container"), [("shoal", "wav"), ("shoal", "pcm"), ("openai", "pcm")]
)
async def test_another_rate_is_found_by_header_by_length_and_by_content_type(
    target: str, container: str
) -> None:
    heard = await one(replace(SHORT, true_rate=44100), target=target, container=container)
    assert heard.figures.rate_ratio == pytest.approx(44100 / RATE, rel=0.001)
    assert Fault.WRONG_RATE in heard.figures.faults


@pytest.mark.parametrize(
    ("lie", "ending", "detail"),
    [
        (Lie(refuse_status=429), Ending.REFUSED, "HTTP 429 at the handshake"),
        (Lie(refuse_status=503), Ending.REFUSED, "HTTP 503 at the handshake"),
        (Lie(refuse_status=401), Ending.FAILED, "HTTP 401 at the handshake"),
        (Lie(end=End.BUSY), Ending.REFUSED, "finish with error: busy"),
        (replace(SHORT, end=End.ERROR), Ending.FAILED, "finish with error"),
        (replace(SHORT, end=End.CLOSE), Ending.BROKEN, "closed with 1011"),
        (replace(SHORT, end=End.HANG), Ending.TIMEOUT, "turn timed out"),
    ],
)
async def test_each_way_to_end_badly_is_told_apart(lie: Lie, ending: Ending, detail: str) -> None:
    heard = await one(lie, timeout_s=1.0)
    assert (heard.turn.ending, heard.turn.detail) == (ending, detail)
    assert not heard.figures.complete


async def test_a_line_recovers_from_every_bad_end() -> None:
    bad = [replace(SHORT, end=end) for end in (End.CLOSE, End.BUSY, End.ERROR)]
    endings = [h.turn.ending for h in await hear([*bad, SHORT, SHORT])]
    assert endings[-2:] == [Ending.FINISHED, Ending.FINISHED]


async def test_speech_after_a_barge_in_is_measured() -> None:
    lie = Lie(audio_s=5.0, chunk_s=0.02, pace=1.0, deaf_s=0.3)
    heard = await one(lie, cut_after_s=0.2, cut_watch_s=0.5)
    assert heard.turn.ending is Ending.CUT
    assert heard.truth.cut_s is not None
    heard.same(heard.turn.cut_s, heard.truth.cut_s)
    heard.same(heard.figures.cut_tail_s, heard.truth.sent_s[-1] - heard.truth.cut_s)
    late = [s for s, at in zip(heard.truth.sent_samples, heard.truth.sent_s, strict=True)
            if at > heard.truth.cut_s]  # fmt: skip
    assert heard.figures.stale_audio_s == pytest.approx(sum(late) / RATE, abs=heard.grain_s + 0.02)


@pytest.mark.parametrize("target", ["shoal", "fish", "openai", "elevenlabs", "deepgram"])
async def test_every_dialect_interrupts_and_speaks_again(target: str) -> None:
    long = Lie(audio_s=5.0, pace=1.0)
    for heard in await hear([long, long], target=target, cut_after_s=0.15):
        assert heard.turn.ending is Ending.CUT
        assert 0.05 < heard.figures.audio_s < 2.0


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        ("fish", {}),
        ("fish", {"flush": "piece"}),
        ("openai", {}),
        ("elevenlabs", {}),
        ("elevenlabs", {"mode": "stream-input"}),
        ("deepgram", {}),
    ],
)
async def test_every_dialect_measures_the_same_server_alike(
    target: str, settings: dict[str, str]
) -> None:
    lies = [replace(SHORT, first_delay_s=0.05), replace(SHORT, first_delay_s=0.1, pace=1.0)]
    for heard in await hear(lies, target=target, **settings):  # type: ignore[arg-type]
        assert heard.turn.ending is Ending.FINISHED
        assert heard.figures.audio_s == pytest.approx(0.3)
        assert heard.figures.faults <= {Fault.STALL}
        heard.same(heard.figures.ttfa_sent_s, true_ttfa_s(heard))


async def test_a_body_that_breaks_off_is_no_clean_end() -> None:
    heard = await one(replace(SHORT, end=End.CLOSE), target="openai")
    assert (heard.turn.ending, heard.turn.detail) == (Ending.BROKEN, "the response broke off")
    refused = await one(Lie(refuse_status=503), target="openai")
    assert refused.turn.ending is Ending.REFUSED


@pytest.mark.parametrize("target", ["shoal", "fish"])
@pytest.mark.parametrize(
    ("frame_s", "audio_s", "faults"),
    [
        (0.02, 0.2, set[Fault]()),
        (0.0, 2.0, {Fault.LONG_FOR_TEXT}),  # it does not keep to what was asked
    ],
)
async def test_a_turn_that_was_capped_is_as_long_as_asked_and_no_fault(
    target: str, frame_s: float, audio_s: float, faults: set[Fault]
) -> None:
    lie = Lie(audio_s=2.0, frame_s=frame_s)
    heard = await one(lie, target=target, cap_s=0.2, max_new_tokens="10")
    assert heard.turn.ending is Ending.FINISHED
    assert heard.figures.audio_s == pytest.approx(audio_s)
    assert heard.figures.faults == faults


async def test_the_servers_own_stages_are_kept() -> None:
    heard = await one(replace(SHORT, stages={"prefill": 0.012, "first_frames": 0.034}))
    assert heard.turn.stages == {"prefill": 0.012, "first_frames": 0.034}
