"""``TextFeed``: text deltas in, segments that the model speaks one after another out.

Owns the buffer of one stream's text that was not taken yet, and the rules of when a piece of it
is ready. Knows no tokens, audio or sockets; the time is an argument. Owned by the decode thread.

Rules
- Text is joined verbatim, in order; a segment's text is what was pushed, less the white space
  around it, control characters, blocks of code and (at a flush or the end) a mark that was never
  finished.
- While nothing is playing, a segment ends at the first sentence end. While audio is still playing
  (``speaking``), short sentences are kept together up to ``min_chars``. Never more than
  ``max_chars``: then it is cut at a clause, else between words, else between characters.
- A sentence end at the very end of the buffer could still go on ("3." "14"), so it is taken after
  a short grace unless a flush says otherwise.
- Text that arrives slowly is cut early when nothing is playing: at a clause end, later between
  words (see ``_PATIENCE``, by latency). That needs time to pass.
- Text that stops arriving is spoken up to its last whole word after ``idle_s``, and the trailing
  partial word as well after ``rest_s``: whatever it is, nothing is continuing it. An unfinished
  ``[``, ``<`` or cue is never spoken.
- A flush is a hard boundary: all before it, then its mark, then what follows.

So with the clock standing still the segments depend on the text, the flushes and the sequence of
``speaking`` alone, not on how the text was cut into deltas nor on when it was taken.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from .api import Latency, Segmentation
from .code_blocks import CodeBlocks
from .marks import SPEAKER, speakable
from .sentences import LOOKAHEAD_CHARS, Cuts, last_character_cut, last_word_cut, scan
from .spans import Span, Trail

LIMIT_CHARS = 1 << 20
LIMIT_MARKS = 1024
_MARK_CHARS = 120
_CHUNK_CHARS = 4096  # what is appended or split off at once, so that no operation copies it all
_LEAST_MAX_CHARS = 20

_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufeff]+")
_HALVES = re.compile("[\ud800-\udfff]")
_LINE_ENDS = str.maketrans("\r\x0b\x0c\x85\u2028\u2029", "\n\n\n\n\n\n")
_ORPHANS = "\"'”’»›)]}」』）】》〉.!?…。！？*_`~"


class TextLimitError(ValueError):
    """More text is waiting to be spoken than a stream may buffer. What was buffered stays."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What the model says next.

    ``text`` is as it was sent. ``speakable`` False: no letter or digit in it ("...", an emoji).
    ``speaker`` is the number of the last ``<|speaker:N|>`` mark up to here, None before the first.
    ``span`` is the text's place among the characters that were pushed, of which the two halves of
    a surrogate pair are one.
    """

    text: str = field(repr=False)
    speakable: bool = True
    speaker: int | None = None
    span: Span = field(default=Span(), compare=False)


@dataclass(frozen=True, slots=True)
class FlushMark:
    """All text pushed before ``flush(mark)`` has been taken."""

    mark: int


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long to hope for more text, in seconds since the last push (``grace``, ``idle``,
    ``rest``) or since the segment's first text (``clause``, ``word``)."""

    grace_s: float
    clause_s: float
    clause_chars: int
    word_s: float
    word_chars: int
    idle_s: float
    rest_s: float


_PATIENCE = {
    Latency.LOW: _Patience(0.04, 0.04, 12, 0.30, 24, 0.5, 1.2),
    Latency.BALANCED: _Patience(0.08, 0.12, 20, 0.70, 40, 0.6, 1.4),
    Latency.NORMAL: _Patience(0.15, 0.35, 40, 1.20, 60, 0.8, 1.6),
}
_SPEAKING_IDLE_S = 1.5  # audio is playing meanwhile: a better cut is worth the wait
_SPEAKING_REST_S = 2.5


@dataclass(frozen=True, slots=True)
class _Option:
    """The first ``stop`` characters become the next segment once ``at_s`` has come."""

    at_s: float
    stop: int


_NOW = -math.inf


class TextFeed:
    """One stream's text. See the module's rules. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        rules: Segmentation = Segmentation(),  # noqa: B008  frozen
        max_chars: int | None = None,
        limit_chars: int = LIMIT_CHARS,
    ) -> None:
        """``max_chars`` is the model's own bound for a segment; the smaller of the two holds."""
        most = rules.max_chars if max_chars is None else min(rules.max_chars, max_chars)
        self._max_chars = max(most, _LEAST_MAX_CHARS)
        self._min_chars = max(0, min(rules.min_chars, self._max_chars // 2))
        self._view_chars = self._max_chars + LOOKAHEAD_CHARS
        self._mark_chars = min(_MARK_CHARS, self._max_chars)
        self._patience = _PATIENCE[rules.latency]
        self._limit_chars = limit_chars
        # Text in pieces of at most _CHUNK_CHARS, and flush marks, in order; the window comes first.
        self._queue: deque[str | FlushMark] = deque()
        self._window = ""
        self._half = ""  # the first half of a surrogate pair whose second half may come
        self._trail = Trail()
        self._code = CodeBlocks(self._trail)
        self._chars = 0
        self._marks = 0
        self._closing = False
        self._last_push_s = 0.0
        self._since_s = 0.0
        self._speaking = False
        self._guessed = (
            False  # the last cut was at the buffer's end: closing marks may still arrive
        )
        self._speaker: int | None = None
        self._plan: tuple[_Option, ...] | None = None

    # In ------------------------------------------------------------------------------------------

    def push(self, text: str, now: float) -> None:
        """Append ``text`` verbatim. Ignored after :meth:`end`.

        Raises TextLimitError, and takes nothing of ``text``, when it would exceed the limit.
        """
        if self._closing or not text:
            return
        if self._chars + len(text) > self._limit_chars:
            raise TextLimitError(f"more than {self._limit_chars} characters wait to be spoken")
        if self._half or not text.isprintable():
            text = self._clean(text)
            self._append(self._without_controls(text), now)
        else:
            self._append(self._code.without(text), now)

    def flush(self, mark: int) -> None:
        """All text so far is to be spoken; ``FlushMark(mark)`` follows it. Ignored after the end.

        Raises TextLimitError when too many marks wait.
        """
        if self._closing:
            return
        if self._marks >= LIMIT_MARKS:
            raise TextLimitError(f"more than {LIMIT_MARKS} flushes wait to be reached")
        self._settle()
        self._queue.append(FlushMark(mark))
        self._marks += 1
        self._plan = None

    def end(self) -> None:
        """No more text will come. Idempotent."""
        if not self._closing:
            self._settle()
            self._closing = True
            self._plan = None

    # Out -----------------------------------------------------------------------------------------

    def take(self, now: float, speaking: bool) -> Segment | FlushMark | None:
        """The next item, or None when nothing is ready at ``now`` (monotonic seconds).

        ``speaking``: this stream's listener still has audio to play for a while, so that waiting
        for a better cut costs nothing.
        """
        if speaking != self._speaking:
            self._speaking = speaking
            self._plan = None
        plan = self._look()
        for option in plan:
            if option.at_s <= now:
                return self._cut(option, now)
        if not plan and not self._window and self._queue:
            mark = self._queue[0]
            if isinstance(mark, FlushMark):
                self._queue.popleft()
                self._marks -= 1
                self._plan = None
                self._guessed = False
                return mark
        return None

    def deadline(self) -> float | None:
        """When :meth:`take` will have something without any further text, if a timer decides.

        For the ``speaking`` of the last :meth:`take`. None: nothing is held, or it is ready now,
        or (an unfinished mark) only more text, a flush or the end can release it.
        """
        soonest = min((option.at_s for option in self._look()), default=_NOW)
        return None if soonest == _NOW else soonest

    @property
    def pending(self) -> int:
        """Characters buffered and not taken yet."""
        return self._chars

    @property
    def empty(self) -> bool:
        """Nothing is held: neither text nor a mark."""
        return not (self._chars or self._queue)

    @property
    def ended(self) -> bool:
        """:meth:`end` was called and all was taken."""
        return self._closing and not self._look() and not self._window and not self._queue

    # Buffer --------------------------------------------------------------------------------------

    def _clean(self, text: str) -> str:
        """Whole characters and one kind of line end: pairs of halves joined (also across pushes),
        lone ones replaced."""
        if self._half:
            text = self._half + text
            self._chars -= 1
            self._half = ""
        if "\ud800" <= text[-1] <= "\udbff":
            self._half = text[-1]
            self._chars += 1
            text = text[:-1]
        if _HALVES.search(text):
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text.translate(_LINE_ENDS)

    def _without_controls(self, text: str) -> str:
        said: list[str] = []
        at = 0
        for found in _CONTROLS.finditer(text):
            said.append(self._code.without(text[at : found.start()]))
            at = found.end()
            self._code.leave_out(at - found.start())
        said.append(self._code.without(text[at:]))
        return "".join(said)

    def _settle(self) -> None:
        """No more of the current line will come."""
        if self._half:
            self._half = ""
            self._chars -= 1
            self._append(self._code.without("\ufffd"), self._last_push_s)
        self._append(self._code.boundary(), self._last_push_s)

    def _append(self, text: str, now: float) -> None:
        if not text:
            return
        last = self._queue[-1] if self._queue else None
        if not isinstance(last, str) and (self._queue or not self._window):
            self._since_s = now
        if isinstance(last, str) and len(last) + len(text) <= _CHUNK_CHARS:
            self._queue[-1] = last + text
        else:
            for start in range(0, len(text), _CHUNK_CHARS):
                self._queue.append(text[start : start + _CHUNK_CHARS])
        self._chars += len(text)
        self._last_push_s = now
        self._plan = None

    def _fill(self) -> None:
        """Bring enough of the section's text into the window, with no white space before it."""
        while True:
            if self._window:
                kept = self._window
                if self._guessed and kept[0] in _ORPHANS:
                    kept = kept.lstrip(_ORPHANS)
                if kept:
                    self._guessed = False
                self._set_window(kept.lstrip())
            if len(self._window) >= self._view_chars or not self._queue:
                return
            head = self._queue[0]
            if isinstance(head, FlushMark):
                return
            self._queue.popleft()
            self._window += head

    def _set_window(self, text: str) -> None:
        gone = len(self._window) - len(text)
        self._chars -= gone
        self._trail.take(gone)
        self._window = text

    # Rules ---------------------------------------------------------------------------------------

    def _look(self) -> tuple[_Option, ...]:
        if self._plan is None:
            self._plan = self._make_plan()
        return self._plan

    def _make_plan(self) -> tuple[_Option, ...]:
        """What could be taken, best first."""
        self._fill()
        view = self._window[: self._view_chars]
        full = len(view) == self._view_chars
        # A full view is judged as if more came, whether or not it does: the same cut either way.
        closed = not full and (bool(self._queue) or self._closing)
        if not view:
            return ()
        cuts = scan(view, closed=closed, mark_chars=self._mark_chars)
        least = self._min_chars if self._speaking else 1
        sentence = next((stop for stop in cuts.sentences if stop >= least), 0)
        if 0 < sentence <= self._max_chars:
            return (_Option(_NOW, sentence),)
        if full or (closed and cuts.held > self._max_chars):
            return (_Option(_NOW, self._forced(view, cuts)),)
        if closed:
            if cuts.held == 0:
                self._set_window("")
                return ()
            return (_Option(_NOW, cuts.held),)
        return tuple(
            o for o in self._timed(view, cuts, least) if o.stop and speakable(view[: o.stop])
        )

    def _forced(self, view: str, cuts: Cuts) -> int:
        """The best cut when the text is longer than a segment may be."""
        most, least = self._max_chars, self._max_chars // 3
        return (
            _last(cuts.sentences, least, most)
            or _last(cuts.clauses, least, most)
            or last_word_cut(view, cuts, most, least)
            or _last(cuts.sentences, 1, most)
            or _last(cuts.clauses, 1, most)
            or last_word_cut(view, cuts, most)
            or last_character_cut(view, cuts, most)
        )

    def _timed(self, view: str, cuts: Cuts, least: int) -> Iterator[_Option]:
        """What may be taken of an open text in a while, best first."""
        most, patience, pushed = self._max_chars, self._patience, self._last_push_s
        idle_s = _SPEAKING_IDLE_S if self._speaking else patience.idle_s
        rest_s = _SPEAKING_REST_S if self._speaking else patience.rest_s
        likely = cuts.likely if cuts.likely <= most else 0
        if likely >= least:
            yield _Option(pushed + patience.grace_s, likely)
            return
        # Whatever is left when nothing comes any more, but for a mark that was begun.
        rest = cuts.held
        if rest < len(view):
            rest = scan(view, closed=True, mark_chars=self._mark_chars).held
        yield _Option(pushed + rest_s, rest if rest <= most else self._forced(view, cuts))
        if not self._speaking:
            clause = _last(cuts.clauses, patience.clause_chars, most)
            yield _Option(self._since_s + patience.clause_s, clause)
            word = last_word_cut(view, cuts, most, patience.word_chars)
            yield _Option(self._since_s + patience.word_s, word)
        whole = likely or _last(cuts.sentences, 1, most) or last_word_cut(view, cuts, most)
        yield _Option(pushed + idle_s, whole)

    def _cut(self, option: _Option, now: float) -> Segment:
        text = self._window[: option.stop].rstrip()
        span = self._trail.span(len(text))
        self._guessed = option.stop == len(self._window) and not (self._queue or self._closing)
        self._set_window(self._window[option.stop :])
        self._since_s = now
        self._plan = None
        for number in SPEAKER.findall(text):
            self._speaker = int(number)
        return Segment(text, speakable(text), self._speaker, span)


def _last(stops: tuple[int, ...], least: int, most: int) -> int:
    return next((stop for stop in reversed(stops) if least <= stop <= most), 0)
