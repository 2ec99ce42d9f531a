"""Parsed arguments -> what to run. Reads the files that arguments name; starts nothing."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from shoal.loadtest.drive.line import LineRules
from shoal.loadtest.drive.load import Load, Mode, Timing, WorkerPlan
from shoal.loadtest.measure.metrics import Rules
from shoal.loadtest.measure.slo import Slo
from shoal.loadtest.plan.recorded import BadRecording, RecordedTurn, read_recording
from shoal.loadtest.plan.turn_plan import Speech
from shoal.loadtest.plan.voices import Voice, VoiceMix
from shoal.loadtest.targets import UnknownTarget, find_target, new_target
from shoal.loadtest.targets.target import TargetOptions

_CAP = "max_new_tokens"
"""The dialect's setting behind ``--max-frames``, where it has one."""


class BadArguments(Exception):
    """What was asked for makes no sense; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Job:
    """A load test as asked for. ``plan`` carries the first of ``levels``."""

    plan: WorkerPlan
    levels: tuple[float, ...]
    repeats: int
    processes: int
    metrics_url: str
    out: Path
    kind: str
    note: str


def job_of(args: argparse.Namespace) -> Job:
    """:raises BadArguments: in the user's terms."""
    mode, levels = _mode(args)
    talking = mode is Mode.CONVERSATION
    options = _options(args)
    load = Load(
        mode=mode,
        level=levels[0],
        think_s=(4.0 if talking else 0.0) if args.think is None else args.think,
        period_s=args.period,
        burst=max(1.0, args.burst),
        crowd_every_s=args.crowd_every if talking else 0.0,
        crowd_share=args.crowd_share,
        ahead_s=args.ahead,
        max_sockets=args.max_sockets,
        cold_every_s=args.cold_every,
        recorded=_recorded(args.replay) if mode is Mode.REPLAY else (),
    )
    slo = Slo(
        ttfa_s=args.slo_ttfa_ms / 1e3,
        percentile=args.slo_percentile,
        prebuffer_s=args.slo_prebuffer_ms / 1e3,
        stalled_share=args.slo_stalled,
        failed_share=args.slo_failed,
    )
    prebuffers = {ms / 1e3 for ms in _numbers(args.prebuffers_ms, "--prebuffers-ms")}
    plan = WorkerPlan(
        target=args.target,
        options=options,
        load=load,
        timing=Timing(args.ramp, args.warmup, args.window, args.cooldown),
        speech=_speech(args, talking, _CAP in options.extra),
        rules=Rules(
            requested_rate=options.rate,
            prebuffers_s=tuple(sorted(prebuffers | {slo.prebuffer_s})),
            resume_s=slo.ttfa_s,
            text_s_per_char=1.0 / args.chars_per_s,
            cap_s=_cap_s(options, args.frame_ms / 1e3),
        ),
        slo=slo,
        frame_s=args.frame_ms / 1e3,
        seed=str(args.seed),
        line_rules=LineRules(turn_timeout_s=args.turn_timeout),
        keep_rows=args.keep_turns,
        keep_worst=args.keep_worst,
    )
    try:
        new_target(plan.target, options)
    except UnknownTarget as problem:
        raise BadArguments(str(problem)) from problem
    return Job(
        plan,
        levels,
        max(1, args.repeat),
        args.processes,
        _metrics_url(args),
        args.out,
        args.kind,
        args.note,
    )


def _mode(args: argparse.Namespace) -> tuple[Mode, tuple[float, ...]]:
    for mode, given in (
        (Mode.CLOSED, args.closed),
        (Mode.OPEN, args.open),
        (Mode.CONVERSATION, args.conversations),
        (Mode.REPLAY, args.speed if args.replay is not None else None),
    ):
        if given is not None:
            levels = _numbers(given, f"--{mode.value}")
            if any(level <= 0 for level in levels):
                raise BadArguments("a level must be above 0")
            if mode in (Mode.CLOSED, Mode.CONVERSATION) and any(
                level != int(level) for level in levels
            ):
                raise BadArguments("users and sockets are whole numbers")
            return mode, levels
    raise BadArguments("one of --closed, --open, --conversations, --replay is needed")


def _recorded(path: Path) -> tuple[RecordedTurn, ...]:
    try:
        return read_recording(path)
    except BadRecording as problem:
        raise BadArguments(str(problem)) from problem


def _options(args: argparse.Namespace) -> TargetOptions:
    extra: dict[str, str] = {}
    for setting in args.extra:
        name, equals, value = setting.partition("=")
        if not equals:
            raise BadArguments(f"--set {setting}: write NAME=VALUE")
        extra[name] = value
    try:
        known = find_target(args.target).settings
    except UnknownTarget as unknown:
        raise BadArguments(str(unknown)) from unknown
    if args.max_frames is not None:
        if _CAP not in known:
            raise BadArguments(f"--max-frames: the protocol of {args.target} has no such limit")
        extra[_CAP] = str(args.max_frames)
    for name in extra:
        if name not in known:
            listed = "; ".join(f"{key}: {what}" for key, what in known.items())
            raise BadArguments(f"{args.target} knows no setting {name!r}. It knows {listed}")
    url: str = args.url
    if urlsplit(url).scheme not in ("ws", "wss", "http", "https"):
        raise BadArguments(f"{url}: write ws://, wss://, http:// or https://")
    key = args.api_key
    if args.api_key_file is not None:
        key = _read(args.api_key_file).strip()
    rate = args.rate or (48000 if args.format == "opus" else 24000)
    if args.format == "mp3" and args.rate is None:
        rate = 44100
    return TargetOptions(url, key, args.model, args.format, rate, extra)


def _cap_s(options: TargetOptions, frame_s: float) -> float | None:
    frames = options.flag(_CAP, "")
    return int(frames) * frame_s if frames.isdecimal() else None


def _speech(args: argparse.Namespace, talking: bool, capped: bool) -> Speech:
    pace = args.tokens_per_s or ("20-80" if talking else "whole")
    shortest, longest = _pair(args.sentences or ("1-1" if capped else "1-3"), "--sentences")
    corpus: tuple[str, ...] = ()
    if args.texts is not None:
        corpus = tuple(line.strip() for line in _read(args.texts).splitlines() if line.strip())
        if not corpus:
            raise BadArguments(f"{args.texts}: holds no text")
    barge_in = (0.15 if talking else 0.0) if args.barge_in is None else args.barge_in
    return Speech(
        sentences=(int(shortest), int(longest)),
        corpus=corpus,
        tokens_per_s=None if pace == "whole" else _pair(pace, "--tokens-per-s"),
        by_sentence=args.by_sentence,
        openings=not capped,
        voices=_voices(args),
        barge_in_share=barge_in,
        barge_in_s=_pair(args.barge_in_s, "--barge-in-s"),
    )


def _voices(args: argparse.Namespace) -> VoiceMix:
    listed: str = args.voices
    if listed.startswith("@"):
        listed = ",".join(_read(Path(listed[1:])).split())
    voices = tuple(Voice(name.strip()) for name in listed.split(",") if name.strip())
    reference = None
    if args.reference is not None:
        try:
            reference = Voice("", args.reference.read_bytes(), args.reference_text)
        except OSError as problem:
            raise BadArguments(str(problem)) from problem
        if not args.fresh_share and not voices:
            voices = (reference,)
    elif args.fresh_share:
        raise BadArguments("--fresh-share needs --reference")
    return VoiceMix(voices or (Voice(),), args.zipf, reference, args.fresh_share)


def _metrics_url(args: argparse.Namespace) -> str:
    if args.metrics == "none" or (args.metrics == "auto" and args.target != "shoal"):
        return ""
    if args.metrics != "auto":
        return str(args.metrics)
    url: str = args.url
    parts = urlsplit(url)
    secure = parts.scheme in ("wss", "https")
    return f"{'https' if secure else 'http'}://{parts.netloc}/metrics"


def _numbers(text: str, name: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as bad:
        raise BadArguments(f"{name} {text}: write numbers with commas between") from bad
    if not numbers:
        raise BadArguments(f"{name}: no numbers given")
    return numbers


def _pair(text: str, name: str) -> tuple[float, float]:
    low, dash, high = text.partition("-")
    try:
        pair = (float(low), float(high if dash else low))
    except ValueError as bad:
        raise BadArguments(f"{name} {text}: write A-B") from bad
    if not 0 < pair[0] <= pair[1]:
        raise BadArguments(f"{name} {text}: write A-B with 0 < A <= B")
    return pair


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise BadArguments(str(problem)) from problem
