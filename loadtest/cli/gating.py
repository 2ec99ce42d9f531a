"""``shoal load gate`` and ``gate-tokens``: judges files against committed ones, as exit codes."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.loadtest.own_server import own_server
from shoal.loadtest.report import baseline, figures, tokens

from .settings import BadArguments

OK, BAD, NO_ANSWER = 0, 1, 2


def gate(args: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """Judge the files, or write the baseline of them. ``run`` performs ``shoal load run``.

    What fails where the client was at its limit is no judgement of the server."""
    path: Path = args.baseline or baseline.path_of(args.kind)
    files: list[Path] = list(args.results)
    if args.run:
        files.append(_measured(args, baseline.read(path), run))
    if not files:
        raise BadArguments("gate needs files to judge, or --run")
    sources = [figures.read(file) for file in files]
    if args.write:
        return _write(args, path, sources)
    held = baseline.read(path)
    if args.kind and held["kind"] != args.kind:
        raise BadArguments(f"{path} is a baseline of {held['kind']}, not of {args.kind}")
    findings = baseline.check(sources, held)
    print(baseline.as_text(findings))
    failed = sum(not finding.passed for finding in findings)
    print(f"{path.name}: {failed} of {len(findings)} failed" if failed else f"{path.name}: passed")
    strained = [f"{source.file}: {reason}" for source in sources for reason in source.strained]
    if failed and strained:
        print(f"shoal load: no judgement, run it again ({'; '.join(strained)})", file=sys.stderr)
        return NO_ANSWER
    return BAD if failed else OK


def _write(args: argparse.Namespace, path: Path, sources: list[figures.Source]) -> int:
    if not args.kind:
        raise BadArguments("--write needs --kind")
    old = baseline.read(path) if path.exists() else None
    new = baseline.record(sources, old, args.kind, args.justification, _tolerances(args))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    print(path)
    return OK


def _tolerances(args: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    for given in args.tolerance:
        name, _, share = str(given).partition("=")
        try:
            found[name] = float(share)
        except ValueError as bad:
            raise BadArguments(f"--tolerance {given}: write METRIC=SHARE") from bad
    return found


def _measured(
    args: argparse.Namespace, held: dict[str, Any], run: Callable[[argparse.Namespace], int]
) -> Path:
    """Run what the baseline says its figures come from; where the result was written."""
    from .arguments import add_arguments

    if not str(held.get("run", "")).strip():
        raise BadArguments(f"the baseline of {held['kind']} does not say what to run")
    words = shlex.split(held["run"])
    fixed = ["--kind", held["kind"], "--out", str(args.out), "--quiet"]
    parser = argparse.ArgumentParser(prog="shoal load")
    add_arguments(parser)
    if args.run == "own":
        with own_server() as url:
            run(parser.parse_args(["run", url, *words, *fixed]))
    else:
        run(parser.parse_args(["run", args.run, *words, *fixed]))
    return args.out / "result.json"


def gate_tokens(args: argparse.Namespace) -> int:
    """Judge one file of codes against another."""
    reference, candidate = tokens.read(args.reference), tokens.read(args.candidate)
    tolerance: float | None = args.tolerance
    if tolerance is None:
        findings = tokens.check(reference, candidate, args.frames)
    else:
        behind = tokens.read_behind(args.candidate)
        if behind is None:
            raise tokens.BadTokens(f"{args.candidate}: a tolerance needs logits, and it holds none")
        findings = tokens.check_behind(reference, behind, args.frames, tolerance)
    print(baseline.as_text(findings))
    return OK if all(finding.passed for finding in findings) else BAD
