"""The table of what was measured: made from committed runs, and equal to what they give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.loadtest import measured
from shoal.loadtest.drive.load import Mode

README = Path(__file__).parents[2] / "README.md"


def run(level: float, **changes: Any) -> dict[str, Any]:
    totals = {
        "turns": 40,
        "failed": 0,
        "frames_per_s": 8000.4,
        "audio_s_per_s": 371.6,
        "stalled_turns": {"0ms": 2, "100ms": 0},
        "percentiles": {"ttfa": {"p50": 0.0314, "p95": 0.0559}},
    }
    totals |= changes.pop("totals", {})
    one = {"mode": "closed", "level": level, "complete": True, "client": [{"reasons": []}]}
    return {"name": f"closed@{level:g}", **one, "totals": totals, **changes}


def load(*runs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "format": "shoal-load",
        "version": 1,
        "kind": "h200",
        "knee": None,
        "settings": {"rules": {}},
        "runs": list(runs),
        **changes,
    }


STEP = {
    "bf16": {"rows": [{"batch": 64, "step_ms": 8, "with_codec_ms": 9, "frames_per_s": 7000}]},
    "fp8+pdl": {
        "rows": [
            {"batch": 64, "step_ms": 6.063, "with_codec_ms": 6.207, "frames_per_s": 10312},
            {"batch": 1, "step_ms": 3.468, "with_codec_ms": 3.495, "frames_per_s": 286},
        ]
    },
}


def shown(folder: Path, *files: dict[str, Any], step: dict[str, Any] | None = None) -> list[str]:
    for number, content in enumerate(files):
        (folder / f"{number}.json").write_text(json.dumps(content))
    named = {
        "conditions": "As it was.",
        "served": ["missing.json", *(f"{number}.json" for number in range(len(files)))],
        "step": "step.json",
        "precision": "fp8+pdl",
    }
    if step is not None:
        (folder / "step.json").write_text(json.dumps(step))
    (folder / "measured.json").write_text(json.dumps(named))
    return measured.table(folder).splitlines()


def test_the_readme_shows_what_the_committed_runs_give() -> None:
    """Change the runs, not the page: ``python -P -m shoal.loadtest.measured --write README.md``."""
    page = README.read_text("utf-8")
    assert measured.inserted(page, measured.table()) == page


def test_every_run_that_is_named_is_there() -> None:
    named = json.loads((measured.RESULTS / "measured.json").read_text("utf-8"))
    for name in (*named["served"], *filter(None, [named["step"]])):
        assert (measured.RESULTS / name).exists(), name


def test_committed_reports_are_small_and_need_nothing_else() -> None:
    for page in measured.RESULTS.glob("*.html"):
        text = page.read_text("utf-8")
        assert len(text.encode()) < 300_000, page.name
        assert "<script" not in text and "http://" not in text.replace("ws://", ""), page.name


def test_a_level_is_a_row(tmp_path: Path) -> None:
    lines = shown(tmp_path, load(run(1), run(64)))
    assert "| 1 user | 31 | 56 | 2 of 40 | 8,000 | 372 |" in lines
    assert "| 64 users | 31 | 56 | 2 of 40 | 8,000 | 372 |" in lines
    assert "As it was." in lines


def test_failures_and_a_strained_client_are_shown(tmp_path: Path) -> None:
    strained = run(16, client=[{"reasons": ["late"]}], totals={"failed": 3})
    lines = shown(tmp_path, load(strained))
    assert "| 16 users\\* | 31 | 56 | 2 of 40, 3 failed | 8,000 | 372 |" in lines
    assert any("The client was at its limit" in line for line in lines)


@pytest.mark.parametrize(
    "content",
    [
        load(run(64), kind="cpu-2"),
        load(run(64, complete=False)),
        load(run(64, totals={"turns": 0})),
    ],
)
def test_what_is_no_figure_of_that_machine_is_left_out(
    content: dict[str, Any], tmp_path: Path
) -> None:
    assert not any("64 users" in line for line in shown(tmp_path, content))


def test_of_a_search_only_the_answer_is_shown(tmp_path: Path) -> None:
    levels = [run(level, mode="open") for level in (8, 16, 32)]
    lines = shown(tmp_path, load(*levels, knee={"best": 16, "mode": "open"}))
    told = [line for line in lines if "turns/s" in line]
    assert len(told) == 1
    assert told[0].startswith("| 16 turns/s, the most that kept p95 within the limit | 31 |")


@pytest.mark.parametrize(
    ("mode", "one", "more"),
    [
        (Mode.CLOSED, "1 user", "2.5 users"),
        (Mode.OPEN, "1 turn/s", "2.5 turns/s"),
        (Mode.CONVERSATION, "1 conversation", "2.5 conversations"),
        (Mode.REPLAY, "1 times the recorded speed", "2.5 times the recorded speed"),
    ],
)
def test_a_level_is_counted_as_its_mode_counts(
    mode: Mode, one: str, more: str, tmp_path: Path
) -> None:
    lines = shown(tmp_path, load(run(1, mode=mode.value), run(2.5, mode=mode.value)))
    assert [line.split(" | ")[0] for line in lines[2:4]] == [f"| {one}", f"| {more}"]


def test_every_mode_of_a_run_has_a_unit() -> None:
    assert set(measured.UNITS) == {mode.value for mode in Mode}


def test_turns_that_spoke_before_their_sentence_was_whole_are_told(tmp_path: Path) -> None:
    early = run(200, mode="conversation", totals={"early_turns": 7})
    (told,) = [line for line in shown(tmp_path, load(early)) if line.startswith("As it was.")]
    assert "With 200, 7 of 40 turns spoke before their first sentence was whole" in told


def test_a_cap_is_told(tmp_path: Path) -> None:
    capped = load(run(4), settings={"rules": {"cap_s": 3.994}})
    assert "As it was. Every sentence was cut off after 4.0 s." in shown(tmp_path, capped)


def test_steps_stand_beside_the_claim(tmp_path: Path) -> None:
    lines = shown(tmp_path, step=STEP)
    assert "| 1 | 3.47 | 3.50 | 286 | 154 |" in lines
    assert "| 64 | 6.06 | 6.21 | 10,312 | 8,006 |" in lines
    assert "From 1 row to 64: 36 times the frames/s; the article's: 52 times." in lines


def test_every_kernel_of_a_step_is_in_one_line(tmp_path: Path) -> None:
    kernels = [
        {"kernel": "gemm_kernel", "us": 3000.0},
        {"kernel": "add_norm_kernel", "us": 300.0},
        {"kernel": "quantise_kernel", "us": 40.0},
        {"kernel": "a_new_kernel", "us": 70.0},
    ]
    profile = {"step_ms": 3.3, "kernels_ms": 3.41, "floor_ms": 1.65, "kernels": kernels}
    profiles = [{"batch": 1, **profile}, {"batch": 64, **profile, "kernels": kernels[:1]}]
    lines = shown(tmp_path, step={"fp8+pdl": {**STEP["fp8+pdl"], "profile": profiles}})
    assert "| where a step's time goes, ms | 1 row | 64 rows |" in lines
    assert "| products | 3.00 | 3.00 |" in lines
    assert "| norms, with what they quantise | 0.34 | 0.00 |" in lines
    assert "| all else | 0.07 | 0.00 |" in lines
    assert "| all kernels | 3.41 | 3.41 |" in lines
    assert "| reading weights, keys and values once | 1.65 | 1.65 |" in lines


def test_without_a_run_only_what_others_publish_is_shown(tmp_path: Path) -> None:
    lines = shown(tmp_path)
    assert lines[0].startswith("| what others publish |")
    assert len(lines) == 2 + len(measured.OTHERS)
    assert all(line.count("|") == 6 for line in lines)


def test_a_page_keeps_all_but_what_is_between_the_marks() -> None:
    page = f"a\n{measured.BEGIN}\nold\n{measured.END}\nb\n"
    new = measured.inserted(page, "new")
    assert new == f"a\n{measured.BEGIN}\nnew\n{measured.END}\nb\n"
    assert measured.inserted(new, "new") == new
    with pytest.raises(ValueError, match="lacks"):
        measured.inserted("no marks", "new")
