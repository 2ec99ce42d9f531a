"""What each action of ``shoal load`` does, as exit codes: 0 fine, 1 judged bad, 2 no answer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.loadtest.drive.fleet import FleetFailed, Watcher
from shoal.loadtest.drive.load import Mode, WorkerPlan
from shoal.loadtest.drive.session import LevelResult, find_knee, longest_level_s, run_level
from shoal.loadtest.measure.knee import KneeSearch
from shoal.loadtest.own_server import NoServer
from shoal.loadtest.report import baseline, compare, html, result, table, tokens
from shoal.loadtest.report.live import LiveView
from shoal.loadtest.report.sounds import embedded
from shoal.loadtest.report.wav_file import save_worst

from .gating import BAD, NO_ANSWER, OK, gate, gate_tokens
from .machine import describe_machine
from .settings import BadArguments, Job, job_of


def perform(args: argparse.Namespace) -> int:
    """Do what was asked; problems of the user's making are one line on stderr."""
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "run": _run,
        "knee": _knee,
        "report": _report,
        "compare": _compare,
        "gate": _gate,
        "gate-tokens": gate_tokens,
        "fleet": _fleet,
    }
    try:
        return actions[args.action](args)
    except (
        BadArguments,
        FleetFailed,
        result.NotAResult,
        baseline.BadBaseline,
        compare.BadThresholds,
        tokens.BadTokens,
        NoServer,
    ) as problem:
        print(f"shoal load: {problem}", file=sys.stderr)
        return NO_ANSWER


def _fleet(args: argparse.Namespace) -> int:
    from shoal.loadtest.plan.recorded import BadRecording
    from shoal.loadtest.simulate.study import study
    from shoal.loadtest.simulate.summary import as_html, as_table

    if min(args.gpus, args.capacity) < 1:
        raise BadArguments("--gpus and --capacity must be at least 1")
    try:
        found = study(args)
    except BadRecording as problem:
        raise BadArguments(str(problem)) from problem
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "fleet.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (args.out / "fleet.html").write_text(as_html(found), encoding="utf-8")
    print(as_table(found))
    print(f"{args.out}/fleet.html")
    return OK


def _level_runner(job: Job, quiet: bool) -> Callable[[float], LevelResult]:
    """How one level of ``job`` is run, with its live view."""

    def run(level: float) -> LevelResult:
        plan = replace(job.plan, load=replace(job.plan.load, level=level))
        view: LiveView | None = None

        def new_watcher(seeded: WorkerPlan, number: int, repeats: int) -> Watcher:
            nonlocal view
            if quiet:
                return Watcher()
            if view is not None:
                view.close()
            view = LiveView(seeded, f" ({number + 1} of {repeats})" if repeats > 1 else "")
            return view

        found = run_level(plan, job.repeats, job.processes, job.metrics_url, new_watcher)
        if view is not None:
            view.close()
        return found

    return run


def _run(args: argparse.Namespace) -> int:
    job = job_of(args)
    run = _level_runner(job, args.quiet)
    results: list[LevelResult] = []
    for level in job.levels:
        results.append(run(level))
        if not results[-1].complete:
            break
    found = _write(job, results, None)
    if not any(run["totals"]["frames_per_s"] for run in found["runs"]):
        print("shoal load: nothing was heard from this server", file=sys.stderr)
        return NO_ANSWER
    kept = all(run["totals"]["slo_kept"] for run in found["runs"])
    return BAD if args.fail_on_slo and not kept else OK


def _knee(args: argparse.Namespace) -> int:
    job = job_of(args)
    try:
        search = KneeSearch(
            job.levels[0],
            args.highest,
            args.resolution,
            job.plan.load.mode not in (Mode.OPEN, Mode.REPLAY),
        )
    except ValueError as bad:
        raise BadArguments(str(bad)) from bad
    results = find_knee(
        search,
        _level_runner(job, args.quiet),
        longest_level_s(job.plan, job.repeats),
        args.budget,
    )
    _write(job, results, search)
    return OK if search.best is not None else BAD


def _write(job: Job, results: list[LevelResult], search: KneeSearch | None) -> Any:
    """Write everything into the job's folder and say so; the result as it was written."""
    job.out.mkdir(parents=True, exist_ok=True)
    wavs = save_worst(results, job.out)
    found = result.build(job.plan, results, search, describe_machine(), job.kind, job.note, wavs)
    result.write(found, job.out / "result.json")
    page = html.render(found, embedded(found, job.out))
    (job.out / "report.html").write_text(page, encoding="utf-8")
    print(table.as_text(found))
    print(f"\n{job.out / 'result.json'}  {job.out / 'report.html'}")
    return found


def _gate(args: argparse.Namespace) -> int:
    return gate(args, _run)


def _report(args: argparse.Namespace) -> int:
    found = result.read(args.result)
    out: Path = args.out or args.result.with_name("report.html")
    page = html.render(found, embedded(found, args.result.parent))
    out.write_text(page, encoding="utf-8")
    print(out)
    return OK


def _compare(args: argparse.Namespace) -> int:
    thresholds = (
        compare.read_thresholds(args.thresholds) if args.thresholds else compare.DEFAULT_THRESHOLDS
    )
    comparison = compare.compare(result.read(args.old), result.read(args.new), thresholds)
    print(compare.as_text(comparison))
    if comparison.unlike and not args.force:
        print("shoal load: conditions differ; --force compares anyway", file=sys.stderr)
        return NO_ANSWER
    if not comparison.changes:
        print("shoal load: the two results have no figure in common", file=sys.stderr)
        return NO_ANSWER
    return BAD if comparison.regressions or comparison.missing else OK
