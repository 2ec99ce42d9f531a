"""The parts of the driver that need no network: recording, collecting, judging the client."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from shoal.loadtest.drive.callers import heard_until_s
from shoal.loadtest.drive.collector import Collector, Window, pick_worst
from shoal.loadtest.drive.fleet import processes_for
from shoal.loadtest.drive.line import LineCounts, LineRules, Spoken
from shoal.loadtest.drive.load import Load, Mode, Timing, WorkerPlan
from shoal.loadtest.drive.recording import MAX_KEPT_BYTES, Recording
from shoal.loadtest.drive.saturation import judge_client
from shoal.loadtest.drive.session import LevelResult, find_knee, longest_level_s
from shoal.loadtest.drive.worker import window_of
from shoal.loadtest.measure.histogram import Histogram
from shoal.loadtest.measure.knee import KneeSearch
from shoal.loadtest.measure.metrics import Rules
from shoal.loadtest.measure.slo import Slo
from shoal.loadtest.measure.timeline import Arrival, Ending, Kind, Turn
from shoal.loadtest.measure.totals import Totals
from shoal.loadtest.plan.text import Piece
from shoal.loadtest.plan.turn_plan import Speech, TurnPlan
from shoal.loadtest.plan.voices import Voice
from shoal.loadtest.stand_in.speaking import wav_header
from shoal.loadtest.targets.target import Note, TargetOptions

SLO = Slo(ttfa_s=0.1)
PLAN = TurnPlan(3, 1, Kind.WARM, 50.0, (Piece(0.0, "Hello there."),), Voice("v"))


def recording(
    container: str = "pcm", rate: int = 8000, heard: list[float] | None = None
) -> Recording:
    told = heard if heard is not None else []
    return Recording(PLAN, container, rate, lambda _, seconds: told.append(seconds))


def tone(samples: int) -> bytes:
    return np.full(samples, 3000, dtype="<i2").tobytes()


def turn(scheduled_s: float = 50.0, ttfa_s: float = 0.05, **changes: object) -> Spoken:
    one = Turn(
        index=0,
        user=0,
        kind=Kind.WARM,
        scheduled_s=scheduled_s,
        speakable_s=scheduled_s,
        began_s=scheduled_s,
        sent_s=scheduled_s,
        text_done_s=scheduled_s,
        ended_s=scheduled_s + 2.0,
        ending=Ending.FINISHED,
        chars=15,
        rate=1000,
        arrivals=(Arrival(scheduled_s + ttfa_s, 2000, 1000),),
    )
    return Spoken(replace(one, **changes), b"pcm")  # type: ignore[arg-type]


def collector(worst: int = 2, rows: int = 10) -> Collector:
    return Collector(Window(90.0, 100.0, 110.0, 112.0), Rules(1000), SLO, 0.05, rows, worst)


def test_a_recording_becomes_the_turn_it_heard() -> None:
    heard: list[float] = []
    one = recording(heard=heard)
    one.began_s = one.sent_s = 50.01
    one.audio(50.2, tone(400) + b"\x01")
    one.note(Note({"prefill": 0.02}, audio_s=0.5))
    one.audio(50.4, b"\x0b" + tone(399))
    one.note(Note(audio_s=0.1))
    spoken = one.finish(50.5, Ending.FINISHED)
    assert heard == pytest.approx([0.05, 0.05])
    assert [(a.at_s, a.samples) for a in spoken.arrivals] == [(50.2, 400), (50.4, 400)]
    assert spoken.declared_audio_s == 0.1
    assert spoken.stages == {"prefill": 0.02}
    assert spoken.sound.first_audible_sample == 0
    assert spoken.sound.leftover_bytes == 0
    assert (spoken.voice, spoken.chars, spoken.index) == ("v", 11, 3)
    assert len(one.pcm) == 1600


def test_a_header_rules_the_rate_and_a_note_does_for_bare_samples() -> None:
    one = recording("wav", 24000)
    one.audio(50.1, wav_header(16000) + tone(160))
    assert one.rate == 16000
    assert one.finish(51.0, Ending.FINISHED).header_rate == 16000
    bare = recording("pcm", 24000)
    bare.note(Note(rate=48000))
    bare.audio(50.1, tone(480))
    assert bare.finish(51.0, Ending.FINISHED).rate == 48000


def test_what_comes_after_a_cut_is_an_arrival_but_not_part_of_the_sound() -> None:
    one = recording()
    one.audio(50.1, tone(80))
    one.cut_s = 50.2
    one.audio(50.3, np.full(80, 32767, dtype="<i2").tobytes())
    spoken = one.finish(50.4, Ending.CUT)
    assert len(spoken.arrivals) == 2
    assert spoken.sound.clipped_samples == 0
    assert len(one.pcm) == 160


def test_kept_audio_is_bounded_but_figures_use_all() -> None:
    one = recording()
    chunk = bytes(MAX_KEPT_BYTES // 2 - 2)
    for n in range(3):
        one.audio(50.0 + n, chunk)
    spoken = one.finish(60.0, Ending.FINISHED)
    assert len(one.pcm) == MAX_KEPT_BYTES
    assert spoken.samples == 3 * len(chunk) // 2


@pytest.mark.parametrize(
    ("container", "format", "subtype", "rate"),
    [("mp3", "MP3", "MPEG_LAYER_III", 44100), ("opus", "OGG", "OPUS", 48000)],
)
def test_a_compressed_stream_is_timed_by_its_frames_and_heard_when_it_is_over(
    container: str, format: str, subtype: str, rate: int
) -> None:
    at = np.arange(rate)
    sound = np.where(at < rate // 2, 0, 8000 * np.sin(at / 10)).astype(np.int16)
    file = io.BytesIO()
    soundfile.write(file, sound, rate, format=format, subtype=subtype)
    stream = file.getvalue()
    one = recording(container, rate)
    for n, start in enumerate(range(0, len(stream), 700)):
        one.audio(50.0 + n, stream[start : start + 700])
    assert one.compressed
    spoken = one.finish(60.0, Ending.FINISHED)
    assert spoken.rate == spoken.header_rate == rate
    assert spoken.samples == pytest.approx(rate, abs=3 * 1152)
    assert len(one.pcm) / 2 == pytest.approx(rate, abs=3 * 1152)
    assert spoken.sound.first_audible_sample == pytest.approx(rate / 2, rel=0.1)


def test_a_stream_that_no_decoder_takes_still_has_its_times() -> None:
    one = recording("opus", 48000)
    one.audio(50.0, b"OggS" + bytes(22) + b"\x00")
    spoken = one.finish(60.0, Ending.FINISHED)
    assert spoken.sound.first_audible_sample is None
    assert len(spoken.arrivals) == 1


def test_only_turns_due_inside_the_window_count() -> None:
    one = collector()
    for due_s in (95.0, 99.99, 100.0, 105.0, 109.99, 110.0, 111.0):
        one.add(turn(due_s))
    assert one.totals.turns == 3
    assert [row.at_s for row in one.rows] == pytest.approx([0.0, 5.0, 9.99])


def test_only_audio_that_arrives_inside_the_window_counts_whichever_turn_it_is_of() -> None:
    one = collector()
    for at_s in (99.0, 100.0, 105.0, 110.0):
        one.on_audio(at_s, 0.5)
    assert one.totals.window_audio_s == 1.0
    assert one.totals.audio_s_per_s == pytest.approx(0.1)
    assert one.take_progress().audio_s == 2.0
    assert one.take_progress().audio_s == 0.0


def test_rows_are_bounded_totals_are_not() -> None:
    one = collector(rows=5)
    for n in range(20):
        one.add(turn(100.0 + n / 4))
    assert len(one.rows) == 5
    assert one.totals.turns == 20


def test_the_worst_are_picked_by_each_way_of_being_bad() -> None:
    one = collector(worst=3)
    for n in range(40):
        one.add(turn(100.0 + n / 10, ttfa_s=0.01 + n / 1000))
    late = turn(105.0, ttfa_s=0.9)
    gap = (Arrival(105.05, 200, 100), Arrival(105.65, 200, 100))
    stalled = turn(105.0, arrivals=gap)
    broken = turn(105.0, ending=Ending.BROKEN)
    for spoken in (late, stalled, broken):
        one.add(spoken)
    for n in range(40):
        one.add(turn(106.0 + n / 20))
    worst = one.worst
    assert [kept.turn for kept in worst] == [broken.turn, stalled.turn, late.turn]
    again = pick_worst([*worst, *worst], SLO, 2)
    assert [kept.turn for kept in again] == [broken.turn, stalled.turn]


def test_progress_tells_what_happened_since_the_last_look() -> None:
    one = collector()
    one.add(turn(95.0))
    one.add(turn(105.0, ending=Ending.REFUSED, arrivals=()))
    one.open_turns = 4
    news = one.take_progress()
    assert (news.turns, news.failed, news.refused, news.open_turns) == (2, 1, 1, 4)
    assert news.ttfa_s == pytest.approx([0.05])
    assert one.take_progress().turns == 0


def test_a_listener_hears_an_answer_out_or_cuts_it() -> None:
    assert heard_until_s(turn(50.0)) == pytest.approx(51.05)
    assert heard_until_s(turn(50.0, ending=Ending.CUT, cut_s=50.3)) == 50.3
    assert heard_until_s(turn(50.0, arrivals=())) == 52.0


def lag(ms: float) -> Histogram:
    histogram = Histogram()
    histogram.record(ms / 1e3)
    return histogram


def test_a_client_with_room_to_spare_is_not_flagged() -> None:
    assert judge_client(lag(3), [0.4, 0.5], 0.6, 0.1, 0.05).reasons == ()


@pytest.mark.parametrize(
    ("lag_ms", "cpu", "machine", "reason"),
    [
        (12, 0.1, None, "late at p99"),
        (1, 0.8, None, "of a core"),
        (1, 0.1, 0.97, "all CPUs"),
    ],
)
def test_a_client_at_its_limit_says_so(
    lag_ms: float, cpu: float, machine: float | None, reason: str
) -> None:
    (found,) = judge_client(lag(lag_ms), [0.1, cpu], machine, 0.1, 0.08).reasons
    assert reason in found


def plan(mode: Mode, level: float) -> WorkerPlan:
    return WorkerPlan(
        "shoal",
        TargetOptions("ws://x"),
        Load(mode, level),
        Timing(),
        Speech(),
        Rules(24000),
        SLO,
        0.05,
        "1",
    )


def test_users_are_shared_out_without_loss_or_overlap() -> None:
    shares = [replace(plan(Mode.CLOSED, 11), worker=w, workers=3).users for w in range(3)]
    assert sorted(user for share in shares for user in share) == list(range(11))


def test_processes_follow_the_streams_and_never_outnumber_the_users() -> None:
    assert processes_for(plan(Mode.CLOSED, 1), 1, cpus=8) == 1
    assert processes_for(plan(Mode.CLOSED, 120), 120, cpus=8) == 3
    assert processes_for(plan(Mode.CLOSED, 5000), 5000, cpus=8) == 8
    assert processes_for(plan(Mode.CLOSED, 2), 120, cpus=8) == 2
    assert processes_for(plan(Mode.OPEN, 2), 120, cpus=8) == 3


def test_a_plan_travels_to_its_process() -> None:
    one = plan(Mode.CONVERSATION, 4)
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    ("budget_s", "levels"),
    [(10.0, [4]), (39.0, [4]), (40.0, [4, 8]), (1000.0, [4, 8, 16, 12, 10, 11])],
)
def test_a_search_begins_no_level_that_may_outlast_its_budget(
    budget_s: float, levels: list[int]
) -> None:
    """Levels of 20 s that may take 20; the knee is at 10."""
    at_s = 100.0
    search = KneeSearch(4, 64)
    ran: list[float] = []

    def run_one(level: float) -> LevelResult:
        nonlocal at_s
        at_s += 20.0
        ran.append(level)
        totals = Totals(SLO, 0.05, window_s=1.0, turns=1, failed=int(level > 10))
        totals.histograms["ttfa"].record(0.01)
        return LevelResult(
            Mode.CLOSED, level, totals, [], [], [], LineCounts(), [], [], {}, "", 1, True
        )

    find_knee(search, run_one, 20.0, budget_s, lambda: at_s)
    assert ran == levels


def test_a_level_lasts_as_long_as_its_last_turn_may() -> None:
    short = replace(
        plan(Mode.OPEN, 4),
        timing=Timing(ramp_s=9.0, warmup_s=2.0, window_s=10.0, cooldown_s=1.0),
        line_rules=LineRules(turn_timeout_s=8.0),
    )
    assert longest_level_s(short, 1) == pytest.approx(24.0)
    assert longest_level_s(short, 3) == pytest.approx(72.0)


def test_the_phases_follow_one_another() -> None:
    window = window_of(Timing(warmup_s=5, window_s=60, cooldown_s=2), 1000.0)
    assert (window.start_s, window.from_s, window.to_s, window.stop_s) == (1000, 1005, 1065, 1067)
    assert window.holds(1005) and not window.holds(1065)
