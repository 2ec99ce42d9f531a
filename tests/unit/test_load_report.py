"""The result file, and the pictures and tables made of it."""

from __future__ import annotations

import io
import json
import wave
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.loadtest.drive.collector import Collector, Progress, Window
from shoal.loadtest.drive.line import LineCounts, Spoken
from shoal.loadtest.drive.load import Load, Mode, Timing, WorkerPlan
from shoal.loadtest.drive.saturation import Saturation
from shoal.loadtest.drive.session import LevelResult, Repeat
from shoal.loadtest.measure.knee import KneeSearch
from shoal.loadtest.measure.metrics import Rules
from shoal.loadtest.measure.prometheus import Stage
from shoal.loadtest.measure.slo import Slo
from shoal.loadtest.measure.timeline import Arrival, Ending, Kind, Sound, Turn
from shoal.loadtest.measure.totals import Totals
from shoal.loadtest.plan.turn_plan import Speech
from shoal.loadtest.report import html, plots, table
from shoal.loadtest.report.live import LiveView
from shoal.loadtest.report.result import NotAResult, build, metrics, read, write
from shoal.loadtest.report.sounds import MOST_CHARS
from shoal.loadtest.report.svg import nice_ticks
from shoal.loadtest.report.wav_file import save_worst
from shoal.loadtest.targets.target import TargetOptions

RATE = 1000
KEY = "sk-secret"
PLAN = WorkerPlan(
    "shoal",
    TargetOptions(f"wss://user:{KEY}@host:8000/v1/tts/live?token={KEY}", KEY, rate=RATE),
    Load(Mode.CLOSED, 4),
    Timing(window_s=10),
    Speech(corpus=("a private line",)),
    Rules(RATE),
    Slo(),
    0.05,
    "1",
)


def spoken(number: int, ttfa_s: float, gap_s: float = 0.1) -> Spoken:
    due_s = 100.0 + number / 10
    first_s = due_s + ttfa_s
    turn = Turn(
        index=number,
        user=number % 4,
        kind=Kind.COLD if number % 10 == 9 else Kind.WARM,
        scheduled_s=due_s,
        speakable_s=due_s,
        began_s=due_s + 0.001,
        sent_s=due_s + 0.001,
        text_done_s=due_s + 0.002,
        ended_s=first_s + gap_s,
        ending=Ending.FINISHED,
        chars=6,
        rate=RATE,
        arrivals=(Arrival(first_s, 400, 200), Arrival(first_s + gap_s, 400, 200)),
        sound=Sound(0, 5000, 0, -80.0),
        stages={"first_frames": 0.02},
    )
    return Spoken(turn, np.full(400, 1000, dtype="<i2").tobytes())


def level(users: int, ttfa_s: float, gap_s: float = 0.1, saturated: bool = False) -> LevelResult:
    collector = Collector(Window(95, 100, 110, 112), PLAN.rules, PLAN.slo, PLAN.frame_s, 100, 2)
    for number in range(40):
        collector.add(spoken(number, ttfa_s + number / 10000, gap_s))
    collector.on_audio(105.0, 20.0)
    reasons = ("event loop late",) if saturated else ()
    return LevelResult(
        Mode.CLOSED,
        users,
        collector.totals,
        [Repeat(f"1.{n}", 0.05, 0.06, 40.0, 0, 0, 20) for n in range(2)],
        list(collector.rows),
        collector.worst,
        LineCounts(4, 0, 0),
        [Saturation(0.001, 0.002, 0.003, 0.3, 0.5, reasons)],
        [Stage("wait", 40, 0.01, 0.008, 0.02)],
        {"turns_total": 40.0},
        "",
        1,
        True,
    )


@pytest.fixture
def result(built: str) -> dict[str, Any]:
    return json.loads(built)


@pytest.fixture(scope="module")
def built() -> str:
    levels = [level(4, 0.05), level(8, 0.12, gap_s=0.5, saturated=True)]
    search = KneeSearch(4, 64)
    search.record(4, True)
    search.record(8, False)
    wavs = {(0, 0): "worst/a.wav"}
    return json.dumps(build(PLAN, levels, search, {"cpu": "x"}, "test-kind", "a note", wavs))


def test_it_survives_the_file(result: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write(result, path)
    assert read(path) == json.loads(json.dumps(result))


def test_it_holds_no_key_no_text_and_no_query(result: dict[str, Any]) -> None:
    everything = json.dumps(result) + html.render(result) + table.as_text(result)
    assert KEY not in everything
    assert "private" not in everything
    assert result["target"]["url"] == "wss://host:8000/v1/tts/live"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[]", "not a result"),
        ("{", "Expecting"),
        ('{"format":"other"}', "not a result"),
        ('{"format":"shoal-load","version":99}', "version 99"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(NotAResult, match=reason):
        read(path)
    with pytest.raises(NotAResult):
        read(tmp_path / "missing.json")


def test_single_figures_have_flat_names(result: dict[str, Any]) -> None:
    first, second = (metrics(run) for run in result["runs"])
    # 36 warm turns of 40, TTFA 50 ms and up to 4 ms more
    assert first["ttfa.p50"] == pytest.approx(0.0519, abs=0.0003)
    assert first["frames_per_s"] == pytest.approx(20 / 0.05 / 10)
    assert first["stalled_share.0ms"] == 0.0
    assert first["goodput"] == 1.0
    # 200 ms in hand, a gap of 500 ms
    assert second["stalled_share.200ms"] == 1.0
    assert second["min_lead.0ms"] == pytest.approx(-0.3)
    assert second["goodput"] == 0.0
    assert second["fault_share.stall"] == 1.0


def test_the_table_says_the_one_number_and_what_limits_it(result: dict[str, Any]) -> None:
    text = table.as_text(result)
    assert "Highest level that kept the SLO: 4 users" in text
    assert "closed@8: THIS CLIENT WAS SATURATED: event loop late" in text
    assert "closed@4: THIS CLIENT" not in text
    assert "closed@8: SLO: TTFA p95" in text
    assert "36 of 36 turns stalled" in text


def test_a_search_that_was_ended_says_what_it_left_open(result: dict[str, Any]) -> None:
    assert result["knee"]["known"] is False
    assert "kept the SLO: 4 users, below 8 not searched out (" in table.headline(result)
    higher = {**result["knee"], "broken": None}
    assert "4 users, none higher tried (" in table.headline({**result, "knee": higher})
    done = {**result["knee"], "known": True}
    assert "kept the SLO: 4 users (TTFA" in table.headline({**result, "knee": done})


@pytest.mark.parametrize(
    ("turns", "said"), [(5, "p95"), (19, "p95"), (20, "p99"), (99, "p99"), (100, "p99.9")]
)
def test_a_percentile_of_few_turns_is_called_what_it_is(
    turns: int, said: str, result: dict[str, Any]
) -> None:
    result["runs"][0]["totals"]["turns"] = turns
    told = f"closed@4: {turns} turns, so {said} is close to the maximum"
    assert told in table.warnings(result)
    result["runs"][0]["totals"]["turns"] = 1000
    assert not any(text.startswith("closed@4: 1000 turns, so") for text in table.warnings(result))


def test_turns_that_spoke_before_their_time_are_no_quiet_zeros(result: dict[str, Any]) -> None:
    assert not any("turns spoke before" in text for text in table.warnings(result))
    result["runs"][0]["totals"]["early_turns"] = 3
    told = [text for text in table.warnings(result) if "turns spoke before" in text]
    assert len(told) == 1 and told[0].startswith("closed@4: 3 of 36 turns")
    del result["runs"][1]["totals"]["early_turns"]
    assert table.warnings(result), "an older result has no such count"


def test_without_a_search_the_best_level_tried_is_the_headline(result: dict[str, Any]) -> None:
    assert "Highest level tried" in table.headline({**result, "knee": None})
    broken = {**result, "knee": None, "runs": result["runs"][1:]}
    assert table.headline(broken).startswith("No level kept")


class Checker(HTMLParser):
    """Every element closed in order, nothing fetched from elsewhere."""

    VOID = ("meta", "br", "line", "rect", "circle")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.sources += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(result: dict[str, Any]) -> None:
    page = html.render(result)
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.sources == ["worst/a.wav", "worst/a.wav"], "to hear, and to save"
    assert "http-equiv" not in page and "<script" not in page and "@import" not in page
    # percentiles, knee twice, per level: bars and scatter; and two worst turns each
    assert checker.counts["svg"] == 1 + 2 + 2 * 2 + 2 * 2
    for heading in ("The knee", "Worst turns", "Where the server", "Definitions", "Repeats"):
        assert f"<h2>{heading}" in page


def test_sound_travels_inside_the_page(result: dict[str, Any]) -> None:
    page = html.render(result, {"worst/a.wav": "data:audio/mpeg;base64,AAAA"})
    checker = Checker()
    checker.feed(page)
    assert checker.sources == ["data:audio/mpeg;base64,AAAA", "worst/a.wav"]


def test_a_page_of_many_levels_and_turns_stays_small(result: dict[str, Any]) -> None:
    """Six levels of 5,000 turns, five worst turns each of 200 messages, and all its sound."""
    one = result["runs"][0]
    arrivals = [[k * 0.05, 0.0464] for k in range(200)]
    stalls = [[k * 0.5, 0.01] for k in range(20)]
    rows = [list(one["rows"][k % len(one["rows"])]) for k in range(5000)]
    worst = [{**one["worst"][0], "arrivals": arrivals, "stalls": stalls, "wav": ""}] * 5
    levels = [{**one, "rows": rows, "worst": worst} for _ in range(6)]
    levels[0]["worst"] = [{**worst[0], "wav": "worst/a.wav"}, *worst[1:]]
    page = html.render({**result, "runs": levels}, {"worst/a.wav": "data:" + "A" * MOST_CHARS})
    assert page.count("data:AAA") == 1 and page.count("Timeline of one turn") == 8
    assert len(page.encode()) < 300_000
    assert "22 more are in the JSON file" in page
    assert "83 of 5000 turns are drawn" in page


def test_thinning_keeps_what_is_out_of_the_ordinary(result: dict[str, Any]) -> None:
    run = result["runs"][0]
    columns = list(run["columns"])
    plain = [list(row) for row in run["rows"] if row[columns.index("kind")] == "warm"]
    for row in plain:
        row[columns.index("ttfa_s")], row[columns.index("stalls")] = 0.05, 0
    bad = list(plain[0])
    bad[columns.index("stalls")], bad[columns.index("user")] = 1, 777
    rows = (plain * 30)[:600]
    rows[301] = bad
    drawn = plots.over_time({**run, "rows": rows}, 0.1, most=50)
    assert "user 777" in drawn
    assert 40 <= drawn.count("<circle") <= 50
    assert "of 600 turns are drawn" in drawn
    assert "are drawn" not in plots.over_time({**run, "rows": rows[:50]}, 0.1, most=50)


def test_what_a_server_says_is_shown_and_not_run(result: dict[str, Any]) -> None:
    result["runs"][0]["totals"]["errors"] = {"<script>alert(1)</script>": 3}
    result["note"] = "<b>bold</b>"
    page = html.render(result)
    assert "<script>" not in page and "<b>bold" not in page
    assert "&lt;script&gt;" in page


def test_a_run_without_a_single_turn_still_has_a_page(result: dict[str, Any]) -> None:
    nothing = Totals(PLAN.slo, PLAN.frame_s, window_s=10.0)
    empty = replace(level(4, 0.05), totals=nothing, rows=[], worst=[], stages=[], repeats=[])
    page = html.render(build(PLAN, [empty], None, {}, "", "", {}))
    assert "No level kept" in page and "no turn was measured" in page


def test_a_window_that_held_only_cold_turns_says_what_to_do() -> None:
    cold = Totals(PLAN.slo, PLAN.frame_s, window_s=3.0, cold_turns=1)
    short = replace(level(4, 0.05), totals=cold, rows=[], worst=[], stages=[], repeats=[])
    told = table.as_text(build(PLAN, [short], None, {}, "", "", {}))
    assert "nothing but 1 cold turn: a longer --window" in told
    assert "close to the maximum" not in told


def test_the_worst_turns_audio_is_saved_and_an_earlier_runs_is_gone(tmp_path: Path) -> None:
    (tmp_path / "worst").mkdir()
    (tmp_path / "worst" / "old.wav").write_bytes(b"")
    names = save_worst([level(4, 0.05)], tmp_path)
    assert names == {(0, 0): "worst/closed-4-1.wav", (0, 1): "worst/closed-4-2.wav"}
    assert sorted(p.name for p in (tmp_path / "worst").iterdir()) == [
        "closed-4-1.wav",
        "closed-4-2.wav",
    ]
    with wave.open(str(tmp_path / "worst" / "closed-4-1.wav")) as file:
        assert (file.getframerate(), file.getnframes(), file.getnchannels()) == (RATE, 400, 1)


def test_ticks_are_round() -> None:
    assert nice_ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert nice_ticks(0.013, 0.094) == [0.02, 0.04, 0.06, 0.08]
    assert nice_ticks(3, 3) == [3]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_view_shows_what_was_reported() -> None:
    view = LiveView(PLAN, " (1 of 3)", io.StringIO())
    view.began(Window(100.0, 105.0, 115.0, 117.0))
    view.progress(Progress(0, 3, 10, 1, 1, 2, 5.0, [0.05] * 9, 0.002))
    view.progress(Progress(1, 4, 5, 0, 0, 0, 5.0, [0.2], 0.004))
    first, counts, ttfa, rates = view.lines(110.0, 120)
    assert "closed@4 (1 of 3)" in first and "measuring  50%" in first
    assert counts.split() == "turns 15 open 7 failed 1 refused 1 stalled 2".split()
    assert "p50    50.0" in ttfa and "max   200.1" in ttfa
    assert "own loop 4 ms late" in rates
    line = view.one_line(103.0)
    assert "warm-up  60%" in line and "turns 15" in line and "open 7" in line


def test_in_a_terminal_it_redraws_in_place() -> None:
    out = Terminal()
    view = LiveView(PLAN, "", out)
    view.tick()
    view.close()
    assert out.getvalue().count("closed@4") == 2
    assert "\x1b[4F" in out.getvalue()
