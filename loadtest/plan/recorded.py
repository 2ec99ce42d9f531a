"""Turns that really came: a server's recording, to be played again. Pure but for reading the file.

A recording says when turns came and how long they were, and not what was said, so a replay says
something else of the same length, in pieces that come when they came. ``shoal serve
--record-turns`` writes such files; ``shoal/realtime/record.py`` says what is in a line.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from shoal.loadtest.measure.timeline import Kind

from .text import Piece, write_prompt
from .turn_plan import TurnPlan
from .voices import Voice

MAX_TURNS: Final = 1_000_000


class BadRecording(Exception):
    """The file is no recording; the message says where."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """``at_s`` counts from the recording's first text; ``pieces`` are (seconds from ``at_s``,
    characters). ``voice_rank`` 0 is the voice of most turns. ``held_s``: how long it took from its
    first text to its end."""

    at_s: float
    pieces: tuple[tuple[float, int], ...] = field(repr=False)
    voice_rank: int
    cut_after_s: float | None
    """After the first audio, where it was interrupted."""
    held_s: float
    audio_s: float


def read_recording(path: Path) -> tuple[RecordedTurn, ...]:
    """Live turns with something to say, by the time that their first text came.

    :raises BadRecording: it cannot be read, has no turns, or too many.
    """
    found: list[tuple[str, RecordedTurn]] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if number > MAX_TURNS:
                    raise BadRecording(f"{path}: more than {MAX_TURNS} turns")
                if line.strip() and (turn := _turn(path, number, line)) is not None:
                    found.append(turn)
    except (OSError, UnicodeDecodeError) as problem:
        raise BadRecording(f"{path}: {problem}") from problem
    if not found:
        raise BadRecording(f"{path}: no turns in it")
    ranks = [voice for voice, _ in Counter(voice for voice, _ in found).most_common()]
    rank_of = {voice: rank for rank, voice in enumerate(ranks)}
    first_s = min(turn.at_s for _, turn in found)
    return tuple(
        sorted(
            (
                replace(turn, at_s=turn.at_s - first_s, voice_rank=rank_of[voice])
                for voice, turn in found
            ),
            key=lambda turn: turn.at_s,
        )
    )


def _turn(path: Path, number: int, line: str) -> tuple[str, RecordedTurn] | None:
    try:
        entry = cast("dict[str, Any]", json.loads(line))
        pieces = [(float(at_s), int(chars)) for at_s, chars in entry["pieces"] if chars > 0]
        if entry["batch"] or not pieces:
            return None
        text_s = pieces[0][0]
        seconds, first_s = float(entry["seconds"]), entry["first_s"]
        cut_s = None
        if entry["end"] == "cancelled" and first_s is not None:
            cut_s = max(0.0, seconds - float(first_s))
        return str(entry["voice"]), RecordedTurn(
            at_s=float(entry["at"]) + text_s,
            pieces=tuple((at_s - text_s, chars) for at_s, chars in pieces),
            voice_rank=0,
            cut_after_s=cut_s,
            held_s=seconds - text_s,
            audio_s=float(entry["audio_s"]),
        )
    except (ValueError, KeyError, TypeError) as problem:
        raise BadRecording(f"{path}: line {number} is no turn") from problem


def again_and_again(turns: Sequence[RecordedTurn], speed: float = 1.0) -> Iterator[RecordedTurn]:
    """The turns as they came, ``speed`` times as fast, and all over when they are through; a turn's
    own text comes no faster. Endless."""
    length_s = turns[-1].at_s + mean_gap_s(turns)
    rounds = 0
    while True:
        for turn in turns:
            yield replace(turn, at_s=(turn.at_s + rounds * length_s) / speed)
        rounds += 1


def mean_gap_s(turns: Sequence[RecordedTurn]) -> float:
    """Between two of them; a second for a single one."""
    return turns[-1].at_s / (len(turns) - 1) if turns[-1].at_s else 1.0


def mean_live(turns: Sequence[RecordedTurn]) -> float:
    """How many were under way at once."""
    return sum(turn.held_s for turn in turns) / (turns[-1].at_s + mean_gap_s(turns))


def live_by_second(turns: Sequence[RecordedTurn]) -> list[int]:
    """How many were under way at the beginning of each second."""
    ends_s = max(turn.at_s + turn.held_s for turn in turns)
    return [
        sum(turn.at_s <= second < turn.at_s + turn.held_s for turn in turns)
        for second in range(math.ceil(ends_s) + 1)
    ]


def turn_text(turn: RecordedTurn, rng: random.Random) -> str:
    """Something else to say, of the same length."""
    chars = sum(chars for _, chars in turn.pieces)
    text = ""
    while len(text) < chars:
        text += ("" if not text else " ") + write_prompt(rng, 1, openings=False)
    return (text[: chars - 1].rstrip() + ".").ljust(chars)


def turn_plan(
    turn: RecordedTurn,
    index: int,
    user: int,
    due_s: float,
    kind: Kind,
    voice: Voice,
    rng: random.Random,
) -> TurnPlan:
    """The turn as it is to happen from ``due_s``."""
    text = turn_text(turn, rng)
    pieces: list[Piece] = []
    for at_s, chars in turn.pieces:
        pieces.append(Piece(at_s, text[:chars]))
        text = text[chars:]
    return TurnPlan(index, user, kind, due_s, tuple(pieces), voice, turn.cut_after_s)
