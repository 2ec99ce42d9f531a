"""Where running text may be cut. Pure functions over one window of text.

Knows sentence ends, clause ends, words, marks and grapheme clusters; knows nothing of time,
buffers or who asks. A window may be open (more text can follow) or closed (a flush or the end
follows). Whatever :func:`scan` reports for an open window stays true whatever follows: what one
more character could still refute is not reported, or is named apart (``likely``, ``held``).

Runs on the decode thread; linear in the window.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import Enum

from .marks import ALNUM, CUE, ORDINARY, SPEAKER, UNFINISHED, mark_end, never_spoken

LOOKAHEAD_CHARS = 64
"""No decision needs to see further than this behind the place it is about."""

_HARD = "。！？｡؟۔।॥።។။"  # end a sentence whatever follows: their scripts put no space there
_CLOSERS = "\"'”’»›)]}」』）】》〉〕*_`~"
_EVENT = re.compile(
    r"(?P<newline>\n)"
    rf"|(?P<end>[.!?…‥．{_HARD}]+)"
    r"|(?P<clause>[,;:—–)]|--|[，、；：])"
    r"|(?P<open>[\[(<])"
)
_CLOSER_RUN = re.compile("[" + re.escape(_CLOSERS) + "]*")
_SPACES = re.compile(r"\s*")
_GAP = re.compile(r"\s+")
_WORD_AHEAD = re.compile(r"[\"'“‘«(*_]*([^\W\d_]*)")
_TOKEN_BEFORE = re.compile(r"[^\s\[\](<>\"“‘*]*$")
_DOTTED = re.compile(r"^(?:[^\W\d_]{1,2}\.)*[^\W\d_]$")
_NO_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uffef"
    "\U00020000-\U0003ffff]"
)

_ALWAYS_SHORT = frozenset(
    "mr mrs ms messrs mx dr prof st mt rev hon capt cpt col gen lt cmdr sgt sen rep gov pres fr"
    " e.g i.e cf vs viz approx z.b d.h bzw sra srta mme mlle".split()
)
_SHORT_BEFORE_DIGIT = frozenset(
    "nos nr fig figs eq vol p pp ch sec art ca est tel ext apt"
    " jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
_OFTEN_SHORT = frozenset(
    "etc inc ltd co corp llc jr sr esq dept ave blvd rd hwy al ph.d min max".split()
)
_STARTERS = frozenset(
    "the a an he she it they we i you this that these those there here but and so or if when while"
    " what why how who where which in on at as for from after before then now is are was were do"
    " does did can could would should will my your his her its our their not no yes please let all"
    " some many most one however also both each every by with to of because although".split()
)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Indices into the scanned window, each just behind the last character of a piece.

    ``sentences`` and ``clauses`` ascend. ``likely`` is a sentence end at the very end of an open
    window that only more text could refute, else 0. ``held`` is where text begins that
    cannot be judged yet (an unfinished mark; the window's length when there is none); in a closed
    window it is what must never be spoken. ``marks`` are the spans that no cut may fall into.
    """

    sentences: tuple[int, ...]
    clauses: tuple[int, ...]
    likely: int
    held: int
    marks: tuple[tuple[int, int], ...]


class _Verdict(Enum):
    END = 1
    CLAUSE = 2
    NOTHING = 3
    LIKELY = 4  # at the window's end, and nothing speaks against it
    UNKNOWN = 5  # more text decides


def scan(text: str, *, closed: bool, mark_chars: int) -> Cuts:
    """Find the places where ``text`` may be cut.

    ``mark_chars`` bounds ``[...]``, ``(...)``, ``<...>``: what is longer is ordinary text.
    """
    sentences: list[int] = []
    clauses: list[int] = []
    marks: list[tuple[int, int]] = []
    likely, held = 0, len(text)
    pos, seen, speakable = 0, 0, False
    while (event := _EVENT.search(text, pos)) is not None:
        start, pos = event.span()
        speakable = speakable or ALNUM.search(text, seen, start) is not None
        seen = pos
        match event.lastgroup:
            case "newline":
                if speakable and text[start - 1] != "\n":
                    sentences.append(start)
            case "open":
                stop = mark_end(text, start, closed, mark_chars)
                if stop == ORDINARY:
                    continue
                if stop == UNFINISHED:
                    if not closed or never_spoken(text[start:]):
                        held = start
                        break
                    continue
                if speakable and SPEAKER.match(text, start):
                    sentences.append(start)
                marks.append((start, stop))
                if text[start] == "(" and not CUE.fullmatch(text, start, stop):
                    speakable = speakable or ALNUM.search(text, start, stop) is not None
                pos = seen = stop
                if speakable and text[start] == "(":
                    ended = _after_parenthesis(text, start, stop)
                    if ended is not None:
                        (sentences if ended else clauses).append(stop)
            case "clause":
                if speakable and _clause_ends(text, start, pos):
                    clauses.append(pos)
            case _:
                if not speakable:
                    continue
                verdict, stop = _judge(text, start, pos, closed)
                if verdict is _Verdict.LIKELY:
                    likely = stop
                elif verdict in (_Verdict.END, _Verdict.CLAUSE):
                    (sentences if verdict is _Verdict.END else clauses).append(stop)
                    pos = seen = stop
    return Cuts(tuple(sentences), tuple(clauses), likely, held, tuple(marks))


def last_word_cut(text: str, cuts: Cuts, most: int, least: int = 1) -> int:
    """The last cut between words at ``least`` <= cut <= ``most``, or 0.

    Not in a mark, not behind a number or a title (what follows belongs to it). The window's end
    counts as a boundary only behind a character that cannot be inside a word.
    """
    most = min(most, cuts.held)
    if _NO_SPACES.search(text, 0, most) is not None:
        stops = range(most, max(least, 1) - 1, -1)
    else:  # only white space and the window's end can be boundaries
        stops = [found.start() for found in _GAP.finditer(text, 0, most + 1)][::-1]
        if most == len(text):
            stops.insert(0, most)
    for at in stops:
        if (
            max(least, 1) <= at <= most
            and _between_words(text, at)
            and not text[at - 1].isspace()
            and not _in_mark(cuts, at)
            and not _leans_forward(text, at)
        ):
            return at
    return 0


def last_character_cut(text: str, cuts: Cuts, most: int) -> int:
    """The last cut at or before ``most`` that splits no mark, number or grapheme cluster.

    Looks back half of ``most`` at the farthest; then it cuts at ``most`` whatever stands there.
    """
    most = min(most, cuts.held)
    most = next((start for start, stop in cuts.marks if 0 < start < most < stop), most)
    for at in range(most, most // 2, -1):
        if not _in_mark(cuts, at) and not _joins(text, at) and not _inside_number(text, at):
            return at
    return most


def _after_parenthesis(text: str, start: int, stop: int) -> bool | None:
    """True: a whole sentence stood in parentheses; False: a clause; None: neither, or not yet."""
    if stop >= len(text) or not text[stop].isspace():
        return None
    before = text[:start].rstrip()
    alone = not before or before[-1] in ".!?…"
    return alone and text[stop - 2] in ".!?…" + _HARD


def _in_mark(cuts: Cuts, at: int) -> bool:
    return any(start < at < stop for start, stop in cuts.marks)


# Ends -------------------------------------------------------------------------------------------


def _judge(text: str, start: int, stop: int, closed: bool) -> tuple[_Verdict, int]:
    """What the run of terminators ``text[start:stop]`` is, and where its closing marks end."""
    run = text[start:stop]
    run_end = stop
    close = _CLOSER_RUN.match(text, stop)
    stop = close.end() if close else stop
    hard = any(c in _HARD for c in run)
    plain = run == "." or run == "．"
    if stop >= len(text):
        if closed:
            return _Verdict.END, stop
        if plain and (
            text[start - 1].isdigit() or _short_form(text, start) not in (None, _Short.ANSWER)
        ):
            return _Verdict.UNKNOWN, stop
        return _Verdict.LIKELY, stop
    following = text[stop]
    if hard:
        return _Verdict.END, stop
    if not following.isspace():
        return _unspaced(text, start, run, run_end, stop), stop
    ahead = _SPACES.match(text, stop)
    after = ahead.end() if ahead else stop
    if plain:
        return _single_dot(text, start, after, closed), stop
    quoted = any(c in "\"”’»'" for c in text[run_end:stop])
    bang = "!" in run or "?" in run
    if bang and not quoted:
        return _Verdict.END, stop
    if "\n" in text[stop:after]:
        return _Verdict.END, stop
    if after >= len(text):
        return (_Verdict.END if closed else _Verdict.LIKELY), stop
    return (_Verdict.CLAUSE if text[after].islower() else _Verdict.END), stop


def _unspaced(text: str, start: int, run: str, run_end: int, stop: int) -> _Verdict:
    """Terminators with no space behind them: mostly inside a token (3.14, a.b, ?x=1)."""
    following = text[stop]
    if following in "[<":
        return _Verdict.END
    if following > "\u2000" and (not following.isalnum() or _NO_SPACES.match(following)):
        return _Verdict.END  # an emoji, or a script without spaces
    token = _token_before(text, start)
    if (
        ("!" in run or "?" in run)
        and following.isupper()
        and not any(c in token for c in "/.@=&")
        and token[-1:].isalpha()
    ):
        return _Verdict.END
    if stop > run_end and following.isupper() and '"' in text[run_end:stop]:
        return _Verdict.END
    return _Verdict.NOTHING


def _single_dot(text: str, start: int, after: int, closed: bool) -> _Verdict:
    kind = _short_form(text, start)
    if kind is None:
        return _Verdict.END
    if kind is _Short.ALWAYS:
        return _Verdict.NOTHING
    if "\n" in text[start:after]:
        return _Verdict.END
    if after >= len(text):
        if closed:
            return _Verdict.END
        return _Verdict.LIKELY if kind is _Short.ANSWER else _Verdict.UNKNOWN
    if kind in (_Short.BEFORE_DIGIT, _Short.ANSWER):
        return _Verdict.NOTHING if text[after].isdigit() else _Verdict.END
    word = _WORD_AHEAD.match(text, after)
    if word is None:
        return _Verdict.NOTHING
    if word.end() >= len(text) and not closed:
        return _Verdict.UNKNOWN
    begins = word[1][:1].isupper() and word[1].lower() in _STARTERS
    return _Verdict.END if begins else _Verdict.NOTHING


class _Short(Enum):
    ALWAYS = 1  # Dr.
    BEFORE_DIGIT = 2  # Jan. 5
    ANSWER = 3  # No. 5, but far more often: No.
    OFTEN = 4  # U.S., etc., J., 3.


def _short_form(text: str, dot: int) -> _Short | None:
    """What kind of abbreviation (or number) stands before the dot, or None."""
    token = _token_before(text, dot)
    lower = token.lower().lstrip("'")
    if lower in _ALWAYS_SHORT:
        return _Short.ALWAYS
    if lower == "no":
        return _Short.ANSWER
    if lower in _SHORT_BEFORE_DIGIT:
        return _Short.BEFORE_DIGIT
    if lower in _OFTEN_SHORT:
        return _Short.OFTEN
    if token.isdigit():
        line = text.rfind("\n", 0, dot - len(token)) + 1
        if not text[line : dot - len(token)].strip():
            return _Short.ALWAYS  # a list's number
        return _Short.OFTEN if len(token) <= 2 else None
    if lower[-1:].isdigit():
        return None
    if _DOTTED.match(token) and (len(token) > 1 or token.isupper()):
        return _Short.OFTEN
    return None


def _token_before(text: str, stop: int) -> str:
    found = _TOKEN_BEFORE.search(text, max(0, stop - 40), stop)
    return found[0] if found else ""


def _clause_ends(text: str, start: int, stop: int) -> bool:
    if text[start] in "，、；：":
        return True
    return stop < len(text) and (text[stop].isspace() or text[start] == "—")


# Words and characters ---------------------------------------------------------------------------


def _between_words(text: str, at: int) -> bool:
    if at >= len(text):
        last = text[-1]
        return (not last.isalnum() and not _extends(last)) or _NO_SPACES.match(last) is not None
    before, after = text[at - 1], text[at]
    if before.isspace() or after.isspace():
        return True
    if _NO_SPACES.match(before) or _NO_SPACES.match(after):
        return not _joins(text, at) and after not in _CLOSERS and after.isalnum()
    return False


def _leans_forward(text: str, at: int) -> bool:
    """A number wants its unit, a title its name: a poor place to stop."""
    last = text[at - 1]
    if at >= len(text):
        return last == "." and _short_form(text, at - 1) is _Short.ALWAYS
    if last.isdigit():
        return _NO_SPACES.match(text, at) is None
    return last == "." and _short_form(text, at - 1) is not None


def _inside_number(text: str, at: int) -> bool:
    return (
        0 < at < len(text)
        and text[at - 1] in "0123456789.,:"
        and text[at] in "0123456789.,:"
        and (text[at - 1].isdigit() or text[at].isdigit())
    )


def _extends(char: str) -> bool:
    """Whether the character continues the grapheme cluster before it."""
    return (
        char in "\u200d\ufe0e\ufe0f"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0020" <= char <= "\U000e007f"
        or "\u1160" <= char <= "\u11ff"
        or unicodedata.category(char) in ("Mn", "Mc", "Me")
    )


def _joins(text: str, at: int) -> bool:
    """Whether a cut at ``at`` would split a grapheme cluster."""
    if at <= 0 or at >= len(text):
        return False
    before, after = text[at - 1], text[at]
    if _extends(after) or before == "\u200d":
        return True
    if unicodedata.combining(before) == 9:  # a virama binds the next consonant
        return True
    if "\U0001f1e6" <= after <= "\U0001f1ff":
        flags = 0
        while (
            at - flags > 0 and flags < 64 and "\U0001f1e6" <= text[at - 1 - flags] <= "\U0001f1ff"
        ):
            flags += 1
        return flags % 2 == 1
    return False
