"""The command line of ``shoal load``. Only declares; imports nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """examples:
  shoal load run ws://localhost:8000 --closed 1,4,16
  shoal load run ws://localhost:8000 --open 2,5,10 --repeat 3 --out results/open
  shoal load run ws://localhost:8000 --conversations 64 --barge-in 0.15
  shoal load knee ws://localhost:8000 --conversations 16 --highest 512
  shoal load run ws://localhost:8000 --replay turns.jsonl --speed 1,2,4
  shoal load run http://localhost:8880 --target openai --closed 8
  shoal load fleet --gpus 500 --capacity 128 --out results/fleet
  shoal load compare old/result.json new/result.json
  shoal load gate --kind h200 load/result.json step.json precision.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare everything on ``parser``; :func:`shoal.loadtest.command.run` takes the outcome."""
    parser.description = (
        "Measure a streaming speech server over its own protocol: time to first audio from the"
        " moment it was due, stalls as a player has them, and how much load fits in a promise."
    )
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run = actions.add_parser("run", help="put one or more levels of load on a server")
    _measuring(run)
    knee = actions.add_parser("knee", help="search the highest level that keeps the SLO")
    _measuring(knee)
    knee.add_argument("--highest", type=float, default=1024, help="never go beyond this level")
    knee.add_argument(
        "--resolution", type=float, default=0.1, help="stop when known to this share (0.1)"
    )
    knee.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        metavar="S",
        help="begin no level that may not end within so many s (its phases and --turn-timeout)",
    )
    _judging(actions)
    _fleet(actions)


def _measuring(parser: argparse.ArgumentParser) -> None:
    _target(parser.add_argument_group("target"))
    _arrivals(parser.add_argument_group("arrivals (choose one; lists are levels in turn)"))
    _speech(parser.add_argument_group("speech"))
    _promise(parser.add_argument_group("promise and figures"))
    _output(parser.add_argument_group("run and output"))


def _target(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("url", help="ws:// or http:// address of the server")
    group.add_argument(
        "--target",
        default="shoal",
        help="shoal, fish, openai, elevenlabs, deepgram, or path/to/file.py:Class (shoal)",
    )
    group.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="extra")
    group.add_argument("--model", default="", help="model name, where the protocol has one")
    group.add_argument("--api-key", default="", help="better: --api-key-file")
    group.add_argument("--api-key-file", type=Path)
    group.add_argument("--format", default="pcm", choices=("pcm", "wav", "mp3", "opus"))
    group.add_argument("--rate", type=int, help="sample rate to ask for (24000; opus 48000)")
    group.add_argument(
        "--metrics",
        default="auto",
        help="the server's Prometheus address; auto: /metrics of a shoal target; none",
    )


def _arrivals(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    mode = group.add_mutually_exclusive_group(required=True)
    mode.add_argument("--closed", metavar="C,...", help="C users, each speaks again when served")
    mode.add_argument("--open", metavar="R,...", help="R turns a second at random (Poisson)")
    mode.add_argument(
        "--conversations", metavar="N,...", help="N sockets: think, speak, listen, interrupt"
    )
    mode.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="turns as a server recorded them (shoal serve --record-turns): when they came, how"
        " long they were, and when who spoke interrupted; as long as --window says",
    )
    group.add_argument(
        "--speed", default="1", metavar="X,...", help="replay: so many times as fast (1)"
    )
    group.add_argument("--think", type=float, help="pause in s (closed 0, conversations 4)")
    group.add_argument(
        "--period", type=float, default=0.0, help="closed: speak every so many s by the clock"
    )
    group.add_argument("--burst", type=float, default=1.0, help="open: mean turns at one instant")
    group.add_argument(
        "--crowd-every", type=float, default=20.0, help="conversations: s between crowds, 0: none"
    )
    group.add_argument("--crowd-share", type=float, default=0.3, help="of those who think")
    group.add_argument(
        "--ahead", type=float, default=1.0, help="open: s before its turn a line is prepared"
    )
    group.add_argument("--max-sockets", type=int, default=4096)
    group.add_argument(
        "--cold-every", type=float, default=10.0, help="s between cold turns (10), 0: none"
    )


def _speech(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--sentences", metavar="A-B", help="a turn's length (1-3; capped: 1-1)")
    group.add_argument(
        "--max-frames",
        type=int,
        metavar="N",
        help="cap every sentence, so that turns end though the model would not (random weights);"
        " a capped turn's length and end are not judged",
    )
    group.add_argument("--texts", type=Path, help="prompts from a file, one a line")
    group.add_argument(
        "--tokens-per-s",
        metavar="A-B|whole",
        help="text as a language model streams it (conversations 20-80), or whole at once",
    )
    group.add_argument(
        "--by-sentence", action="store_true", help="send a sentence when its last token came"
    )
    group.add_argument("--voices", default="", help="ids a,b,c or @file, most popular first")
    group.add_argument("--zipf", type=float, default=1.0, help="voice k has weight 1/k^ZIPF")
    group.add_argument("--reference", type=Path, help="WAV file of a voice to bring along")
    group.add_argument("--reference-text", default="", help="what is said in it")
    group.add_argument(
        "--fresh-share", type=float, default=0.0, help="of turns with a never-seen reference"
    )
    group.add_argument("--barge-in", type=float, help="share of turns (conversations 0.15)")
    group.add_argument("--barge-in-s", default="0.3-3", metavar="A-B", help="after first audio")


def _promise(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--slo-ttfa-ms", type=float, default=100.0)
    group.add_argument("--slo-percentile", type=float, default=95.0)
    group.add_argument("--slo-prebuffer-ms", type=float, default=0.0, help="of the player: 0")
    group.add_argument("--slo-stalled", type=float, default=0.0, help="share of turns that may")
    group.add_argument("--slo-failed", type=float, default=0.0, help="share of turns that may")
    group.add_argument("--prebuffers-ms", default="0,100,200", help="players to simulate")
    group.add_argument(
        "--frame-ms", type=float, default=2048 / 44.1, help="a model frame (46.44: S2)"
    )
    group.add_argument(
        "--chars-per-s", type=float, default=15.0, help="speaking rate that is expected"
    )


def _output(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--warmup", type=float, default=5.0, help="s not counted (5)")
    group.add_argument("--window", type=float, default=60.0, help="s counted (60)")
    group.add_argument("--cooldown", type=float, default=2.0, help="s of load after the window")
    group.add_argument("--ramp", type=float, default=2.0, help="s over which users begin")
    group.add_argument("--repeat", type=int, default=1, help="runs a level, each its own seed")
    group.add_argument("--seed", default="1")
    group.add_argument("--turn-timeout", type=float, default=60.0)
    group.add_argument("--processes", type=int, default=0, help="0: one for 50 streams")
    group.add_argument("--out", type=Path, default=Path("load-result"), help="folder to write")
    group.add_argument("--kind", default="", help="kind of machine the server runs on")
    group.add_argument("--note", default="", help="kept in the result")
    group.add_argument("--keep-worst", type=int, default=5)
    group.add_argument("--keep-turns", type=int, default=5000, help="rows kept for the plots")
    group.add_argument("--quiet", action="store_true", help="no live view")
    group.add_argument(
        "--fail-on-slo", action="store_true", help="exit 1 when a level breaks the SLO"
    )


def _fleet(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    fleet = actions.add_parser(
        "fleet", help="simulate a day of a fleet under several policies; measures nothing"
    )
    fleet.add_argument("--gpus", type=int, default=500, help="the most there can be (500)")
    fleet.add_argument("--peak", type=float, help="live turns at the day's peak (0.53 of all room)")
    fleet.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="instead of a day that is made up: turns as a server recorded them (shoal serve"
        " --record-turns), stretched to --hours and grown to the peak",
    )
    fleet.add_argument(
        "--hours", type=float, default=24.0, metavar="H", help="that a replay stands for (24)"
    )
    fleet.add_argument("--seed", type=int, default=1)
    fleet.add_argument("--out", type=Path, default=Path("fleet"), metavar="DIR")
    constants = fleet.add_argument_group("what one GPU was measured to do")
    constants.add_argument("--capacity", type=int, default=128, help="safe live turns (128)")
    constants.add_argument("--ttfa-idle", type=float, default=0.017, metavar="S")
    constants.add_argument("--ttfa-full", type=float, default=0.056, metavar="S")
    constants.add_argument(
        "--start", type=float, nargs=2, default=(20.0, 135.0), metavar=("S", "S")
    )
    constants.add_argument("--miss", type=float, default=0.013, metavar="S", help="prefill a voice")
    constants.add_argument("--step", type=float, default=0.008, metavar="S", help="a decode step")


def _judging(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    report = actions.add_parser("report", help="write the HTML of a result again")
    report.add_argument("result", type=Path)
    report.add_argument("--out", type=Path, help="default: report.html beside the result")
    compare = actions.add_parser("compare", help="exit 1 if B is worse than A")
    compare.add_argument("old", type=Path, metavar="A.json")
    compare.add_argument("new", type=Path, metavar="B.json")
    compare.add_argument("--thresholds", type=Path, help="TOML with [[threshold]] tables")
    compare.add_argument("--force", action="store_true", help="although conditions differ")
    gate = actions.add_parser("gate", help="exit 1 if results fail their committed baseline")
    gate.add_argument(
        "results",
        nargs="*",
        type=Path,
        metavar="FILE.json",
        help="of load tests, of bench_step (step.json) and of bench_precision (precision.json)",
    )
    gate.add_argument(
        "--kind", default="", help="of machine: judges by loadtest/baselines/KIND.json"
    )
    gate.add_argument("--baseline", type=Path, help="another file than that")
    gate.add_argument(
        "--run",
        default="",
        metavar="URL",
        help="measure first, as the baseline says; 'own' starts a server for it",
    )
    gate.add_argument("--out", type=Path, default=Path("load-gate"), help="folder of that run")
    gate.add_argument("--write", action="store_true", help="make the files the new baseline")
    gate.add_argument(
        "--justification", default="", help="needed when a figure gets more than 5 %% worse"
    )
    gate.add_argument(
        "--tolerance",
        action="append",
        default=[],
        metavar="METRIC=SHARE",
        help="with --write: more than 5 %% for ttfa.p50 or ttfa.p95",
    )
    tokens = actions.add_parser("gate-tokens", help="exit 1 if the first frames' codes differ")
    tokens.add_argument("reference", type=Path)
    tokens.add_argument("candidate", type=Path)
    tokens.add_argument("--frames", type=int, default=5)
    tokens.add_argument(
        "--tolerance",
        type=float,
        metavar="LOGITS",
        help="a token may be this far behind the reference's best; without it, codes must be equal",
    )
