"""``Alignment``: when the words of a turn are spoken, as far as that can be told. Pure.

Where a segment begins is known from the engine, where it ends from what follows it. Inside it the
times are an estimate: each word gets a share of the time by its length, between the first and the
last sound, and the pauses that can be heard are laid on the punctuation that may have made them.
Knows no messages of a wire and no clock. Owned by the event loop's thread.

All times that go in are of the model's audio; all that come out are of the client's, which plays
``speed`` times as fast and has silence inserted where an encoder was flushed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from shoal.engine.api import Span
from shoal.proto.messages import Aligned, Word

from .words import Spoken, words_of

MAX_SEGMENTS: Final = 256
"""So many segments back is it known what was heard."""
UNIT_S: Final = 0.055
"""A unit of ``words.py`` until a segment has shown what it takes."""
HOP_S: Final = 0.02
QUIET_DB: Final = -38.0
"""Below the segment's loudest hop: nobody speaks."""
LEAST_PAUSE_S: Final = 0.1
MAX_PAUSES: Final = 24
SKIP_BREAK_S: Final = 0.3
"""Rather than move a break by more than this, take it for one without a pause."""

Gap = tuple[float, float]
"""From when to when, in seconds."""


@dataclass(slots=True)
class _Segment:
    """``begin`` and ``samples`` are in samples of the model's audio."""

    index: int
    text: str
    span: Span
    through: int  # so many characters of what was sent are spoken when all of it is
    begin: int
    samples: int = 0
    ended: bool = False
    levels: list[float] = field(default_factory=list[float])  # energy of each hop
    rest: bytes = b""  # samples that fill no hop yet
    sounds: list[Gap] = field(default_factory=list[Gap])  # once it ended
    words: list[Spoken] | None = None

    def spoken(self) -> list[Spoken]:
        if self.words is None:
            self.words = words_of(self.text)
        return self.words


class Alignment:
    """One turn. ``detailed``: someone wants to see it, so it is worth listening to the audio.
    ``unit_s``: the pace to reckon with until it shows, from the turn before."""

    def __init__(
        self,
        sample_rate: int,
        speed: float = 1.0,
        detailed: bool = False,
        unit_s: float = UNIT_S,
    ) -> None:
        self._rate = sample_rate
        self._speed = speed
        self._detailed = detailed
        self._hop = int(HOP_S * sample_rate)
        self._segments: deque[_Segment] = deque()
        self._forgotten_chars = 0  # sent up to the end of the last segment that is not kept
        self._samples = 0
        self._inserted: deque[tuple[int, float]] = deque([(0, 0.0)], maxlen=MAX_SEGMENTS)
        self.unit_s = unit_s
        self._shown = 0

    # What happens -------------------------------------------------------------------------------

    def segment(self, index: int, text: str, span: Span) -> list[Aligned]:
        """A segment begins where the audio is now; the one before is over. ``span`` is the place
        of ``text`` in what was sent."""
        final = self.end_segment()
        if len(self._segments) >= MAX_SEGMENTS:
            self._forgotten_chars = self._segments.popleft().through
        self._segments.append(_Segment(index, text, span, span.place(len(text)), self._samples))
        self._shown = 0
        return final

    def audio(self, samples: bytes) -> list[Aligned]:
        """Mono s16le at the model's rate goes out next. A snapshot when it holds new words."""
        self._samples += len(samples) // 2
        segment = self._current()
        if segment is None:
            return []
        segment.samples += len(samples) // 2
        if not self._detailed:
            return []
        self._listen(segment, samples)
        words = self._so_far(segment)
        if len(words) <= self._shown:
            return []
        self._shown = len(words)
        return [self._aligned(segment, words)]

    def silence(self, samples: int) -> None:
        """Silence that belongs to no segment goes out next."""
        self._samples += samples

    def end_segment(self, sent: int = 0) -> list[Aligned]:
        """No more audio comes for the segment: its last snapshot, once. ``sent``: what it leaves
        of the first so many characters, nobody speaks."""
        if self._segments:
            self._segments[-1].through = max(self._segments[-1].through, sent)
        segment = self._current()
        if segment is None:
            return []
        segment.ended = True
        if not self._detailed:
            return []
        segment.sounds = _sounds(segment.levels)
        segment.levels.clear()
        segment.rest = b""
        words = self._final(segment)
        self._learn(segment, words)
        segment.words = None  # many segments are kept, and few are asked for again
        return [self._aligned(segment, words)]

    def inserted(self, at_samples: int, total_s: float) -> None:
        """Behind ``at_samples`` of the model's audio, ``total_s`` of silence were added in all."""
        self._inserted.append((at_samples, total_s))

    # What can be told ---------------------------------------------------------------------------

    def heard(self, played_s: float) -> int:
        """How many characters of what was sent are spoken in the first ``played_s`` of the
        client's audio: up to the last word of which at least half was played."""
        chars = self._forgotten_chars
        for segment in self._segments:
            offset_s = self._offset_s(segment.begin)
            if played_s >= offset_s + segment.samples / self._rate / self._speed and (
                segment.ended or segment is not self._segments[-1]
            ):
                chars = segment.through
                continue
            inside_s = (played_s - offset_s) * self._speed
            words = self._so_far(segment) if not segment.ended else self._final(segment)
            end = max((w.end for w in words if (w.start_s + w.end_s) / 2 <= inside_s), default=0)
            return segment.span.place(end) if end else chars
        return chars

    def _current(self) -> _Segment | None:
        if not self._segments or self._segments[-1].ended:
            return None
        return self._segments[-1]

    def _offset_s(self, samples: int) -> float:
        """Where a place of the model's audio is in the client's."""
        inserted_s = [total_s for at, total_s in self._inserted if at <= samples]
        return samples / self._rate / self._speed + (inserted_s[-1] if inserted_s else 0.0)

    def _so_far(self, segment: _Segment) -> list[Word]:
        """The words that are inside the audio there is, at the pace the turn had until now."""
        audio_s = segment.samples / self._rate
        sounds = _sounds(segment.levels)
        at_s = sounds[0][0] if sounds else 0.0
        words: list[Word] = []
        for word in segment.spoken():
            end_s = at_s + word.units * self.unit_s
            if end_s > audio_s:
                break
            words.append(Word(word.text, at_s, end_s, word.begin, word.end))
            at_s = end_s + word.pause_units * self.unit_s
        return words

    def _final(self, segment: _Segment) -> list[Word]:
        return _placed(segment.spoken(), segment.samples / self._rate, segment.sounds)

    def _learn(self, segment: _Segment, words: Sequence[Word]) -> None:
        units = sum(word.units + word.pause_units for word in segment.spoken()[:-1])
        if units < 8 or not words:
            return
        unit_s = (words[-1].start_s - words[0].start_s) / units
        self.unit_s += 0.5 * (min(max(unit_s, UNIT_S / 2), UNIT_S * 2) - self.unit_s)

    def _aligned(self, segment: _Segment, words: Sequence[Word]) -> Aligned:
        speed = self._speed
        return Aligned(
            segment.index,
            segment.text,
            self._offset_s(segment.begin),
            segment.samples / self._rate / speed,
            tuple(
                Word(word.text, word.start_s / speed, word.end_s / speed, word.begin, word.end)
                for word in words
            ),
            segment.ended,
            segment.span.place(len(segment.text)),
        )

    # Listening ----------------------------------------------------------------------------------

    def _listen(self, segment: _Segment, samples: bytes) -> None:
        data = segment.rest + samples
        whole = len(data) // (2 * self._hop)
        hops = np.frombuffer(data, "<i2", whole * self._hop).reshape(whole, self._hop)
        segment.levels += np.square(hops, dtype=np.float32).mean(axis=1).tolist()
        segment.rest = data[2 * whole * self._hop :]


def _sounds(levels: Sequence[float]) -> list[Gap]:
    """The stretches of sound, in seconds; gaps too short for a pause do not part them."""
    loudest = max(levels, default=0.0)
    if loudest <= 0.0:
        return []
    floor = loudest * 10 ** (QUIET_DB / 10)
    sounds: list[Gap] = []
    for hop, level in enumerate(levels):
        if level < floor:
            continue
        start_s, end_s = hop * HOP_S, (hop + 1) * HOP_S
        if sounds and start_s - sounds[-1][1] < LEAST_PAUSE_S:
            sounds[-1] = (sounds[-1][0], end_s)
        else:
            sounds.append((start_s, end_s))
    return sounds


def _placed(words: Sequence[Spoken], audio_s: float, sounds: Sequence[Gap]) -> list[Word]:
    """All ``words`` within ``audio_s``, rising. ``sounds``: where something is heard."""
    if not words or audio_s <= 0.0:
        return []
    begin_s = min(sounds[0][0], audio_s) if sounds else 0.0
    end_s = min(sounds[-1][1], audio_s) if sounds else audio_s
    gaps = [(a[1], b[0]) for a, b in pairwise(sounds)]
    breaks = [at for at, word in enumerate(words[:-1]) if word.pause_units]
    anchors = _matched(words, breaks, gaps, begin_s, end_s)
    placed: list[Word] = []
    first, from_s = 0, begin_s
    for last, (until_s, next_s) in [*anchors, (len(words) - 1, (end_s, end_s))]:
        placed += _spread(words[first : last + 1], from_s, until_s)
        first, from_s = last + 1, next_s
    return placed


def _spread(words: Sequence[Spoken], from_s: float, until_s: float) -> list[Word]:
    """Share a stretch out by the words' lengths and the pauses between them."""
    total = sum(word.units + word.pause_units for word in words) - words[-1].pause_units
    unit_s = max(until_s - from_s, 0.0) / total
    at_s = from_s
    placed: list[Word] = []
    for word in words:
        end_s = min(at_s + word.units * unit_s, until_s)
        placed.append(Word(word.text, min(at_s, end_s), end_s, word.begin, word.end))
        at_s = end_s + word.pause_units * unit_s
    return placed


def _matched(
    words: Sequence[Spoken],
    breaks: Sequence[int],
    gaps: Sequence[Gap],
    begin_s: float,
    end_s: float,
) -> list[tuple[int, Gap]]:
    """Which gap in the sound each break of the text made, in order; some made none.

    The cheapest match in order, by how far each break is from the gap in the proportional
    estimate; a gap without a break costs its length.
    """
    if len(gaps) > MAX_PAUSES:
        gaps = sorted(sorted(gaps, key=lambda gap: gap[0] - gap[1])[:MAX_PAUSES])
    if not gaps or not breaks or len(breaks) > 2 * MAX_PAUSES:
        return []
    even = _spread(words, begin_s, end_s)
    places_s = [(even[at].end_s + even[at + 1].start_s) / 2 for at in breaks]
    # cost[i][j]: of the first i breaks with the first j gaps.
    cost = [[0.0] * (len(gaps) + 1) for _ in range(len(breaks) + 1)]
    for j, gap in enumerate(gaps, 1):
        cost[0][j] = cost[0][j - 1] + gap[1] - gap[0]
    for i, place_s in enumerate(places_s, 1):
        cost[i][0] = cost[i - 1][0] + SKIP_BREAK_S
        for j, gap in enumerate(gaps, 1):
            cost[i][j] = min(
                cost[i - 1][j - 1] + _distance_s(place_s, gap),
                cost[i - 1][j] + SKIP_BREAK_S,
                cost[i][j - 1] + gap[1] - gap[0],
            )
    matched: list[tuple[int, Gap]] = []
    i, j = len(breaks), len(gaps)
    while i and j:
        gap = gaps[j - 1]
        if cost[i][j] == cost[i - 1][j - 1] + _distance_s(places_s[i - 1], gap):
            matched.append((breaks[i - 1], gap))
            i, j = i - 1, j - 1
        elif cost[i][j] == cost[i - 1][j] + SKIP_BREAK_S:
            i -= 1
        else:
            j -= 1
    return matched[::-1]


def _distance_s(place_s: float, gap: Gap) -> float:
    return abs(place_s - (gap[0] + gap[1]) / 2)
