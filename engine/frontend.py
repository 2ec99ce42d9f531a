"""Text front ends: from a segment as it was sent to what a model is given.

A front end is a few pure functions in a frozen box. ``None`` is the S2 family's, which reads any
language and knows ``[tags]``: the text is only cleaned. ``"english"`` is the built-in voice's,
which has read nothing but letters: everything is written out. Neither ever raises, and neither
lets a client write a model's control tokens. Knows nothing of tokens or time; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from html import unescape

from . import english, formulas
from .marks import ALNUM, CONTROL_MARK, CUE, ELEMENT, SPEAKER, TAG
from .rewriting import Match, Rule, rewritten, rule

MAX_CHARS = 8192
"""What is longer than this is cut off: no segment comes near it."""


@dataclass(frozen=True, slots=True)
class Frontend:
    """What one family of models wants of text."""

    name: str | None
    _spoken: Callable[[str], str]
    _as_written: Callable[[str], str]
    _finish: Callable[[str], str]

    def spoken(self, text: str, normalize: bool = True) -> str:
        """What the model is given for ``text``; "" when nothing in it can be spoken. ``normalize``
        False: numbers, signs and short forms are not written out, which the S2 family's never are.

        At most ``MAX_CHARS`` characters are read, and each gives at most 16.
        """
        return (self._spoken if normalize else self._as_written)(text[:MAX_CHARS])

    def inputs(self, text: str, max_chars: int, normalize: bool = True) -> tuple[str, ...]:
        """:meth:`spoken`, in pieces of at most ``max_chars``, each fit to be said alone."""
        said = self.spoken(text, normalize)
        if len(said) <= max_chars:
            return (said,) if said else ()
        pieces = (self._finish(piece) for piece in split_spoken(said, max_chars - 1))
        return tuple(piece for piece in pieces if piece)


def make_frontend(name: str | None) -> Frontend:
    """The front end called ``name``. Raises ValueError for a name that is not known."""
    match name:
        case None:
            return Frontend(None, _as_written, _as_written, str.strip)
        case "english":
            return Frontend(
                name,
                lambda text: english.spoken(plain(formulas.said(text))),
                lambda text: english.as_written(plain(text)),
                english.finish,
            )
        case _:
            raise ValueError(f"no text front end is called {name!r}")


def split_spoken(text: str, max_chars: int) -> list[str]:
    """``text`` in pieces of at most ``max_chars`` (at least 8) characters of about equal length.

    Cut at sentence ends, else clauses, else between words; a longer word is cut anywhere.
    """
    max_chars = max(8, max_chars)
    pieces: list[str] = []
    text = text.strip()
    while len(text) > max_chars:
        left = -(-len(text) // max_chars)
        aim = min(max_chars, -(-len(text) // left) + max_chars // 8)
        stop = _cut_at(text, aim, max_chars)
        pieces.append(text[:stop].strip())
        text = text[stop:].strip()
    return [*pieces, text] if text else pieces


_STOPS = (
    re.compile(r"[.!?。！？]\s*(?=\S)"),
    re.compile(r"[,;:，、；：]\s*(?=\S)"),
    re.compile(r"\s+"),
)
# What belongs to the word behind it, or before it: mostly the inside of a number.
_LEANING = (
    *("thousand,", "million,", "billion,", " hundred", " thousand", " point", " dot", " and"),
    *(" the", " a", " an", " of", " to", " minus"),
)
_LEANT_ON = ("hundred", "thousand", "million", "billion", "point ", "dot ", "percent", "p m")


def _cut_at(text: str, aim: int, most: int) -> int:
    for pattern, lean in (
        (_STOPS[0], True),
        (_STOPS[1], True),
        (_STOPS[2], True),
        (_STOPS[2], False),
    ):
        found = [stop.end() for stop in pattern.finditer(text, aim // 2, most + 1)]
        stops = [stop for stop in found if _splits(text, stop, most, lean)]
        if stops:
            return min(stops, key=lambda stop: abs(stop - aim))
    return most


def _splits(text: str, stop: int, most: int, lean: bool) -> bool:
    """Whether the cut is one between words that a speaker might pause at."""
    piece = text[:stop].rstrip()
    if len(piece) > most:
        return False
    if lean and (piece.endswith(_LEANING) or text.startswith(_LEANT_ON, stop)):
        return False
    return text[stop - 1].isspace() or not text[stop - 1].isascii()


# Markup ------------------------------------------------------------------------------------------

_ENTITIES = re.compile(r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\ufffd\u202a-\u202e\u2066-\u2069]"
)
_GAPS = re.compile(r"[ \t\xa0\u2000-\u200a\u3000]+")
_HALVES = re.compile("[\ud800-\udfff]")
_LINE_ENDS = re.compile("\r\n?|\u2028|\u2029")
_PICTURE = (
    "\u20e3\u2300-\u23ff\u25a0-\u27bf\u2b00-\u2bff\ufe0e\ufe0f\U0001f000-\U0001faff"
    "\U000e0020-\U000e007f"
)
_HIDDEN = re.compile(
    r"<!--.{0,1000}?-->|<(script|style)\b[^<>]{0,200}>.{0,1000}?</\1>", re.DOTALL | re.IGNORECASE
)
_PICTURE_NAME = re.compile(r"(?<![\w:]):[a-z+-][a-z0-9_+-]{1,30}:(?![\w:])")
_EMOJI = re.compile(rf"[ \t]*[{_PICTURE}][{_PICTURE}\u200d]*([ \t]*(?=[.,!?;:…\n]|$))?")
_LINK = (
    r"!?\[([^\[\]\n]{0,300})\]\([^()\s]{0,500}(?:\([^()\s]{0,100}\)[^()\s]{0,100})?"
    r"(?:[ \t]+\"[^\"\n]{0,100}\")?\)"
)
_EMPHASIS = (
    r"(?<![A-Za-z0-9_])_{1,3}(?=[A-Za-z0-9])|(?<=[A-Za-z0-9.!?,])_{1,3}(?![A-Za-z0-9_])"
    r"|(?<![\s\d*])\*(?!\d)|(?<!\d)\*(?![\s\d*])"
)


def _rule(pattern: str, said: str | Callable[[Match], str]) -> Rule:
    return rule(pattern, said, re.MULTILINE)


_MARKDOWN = (
    _rule(r"^[ \t]*(?:```|~~~).*$", ""),
    # Tables: the line under the heading, then rows
    _rule(r"^[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+[ \t]*(?::?-+:?)?[ \t]*$", ""),
    _rule(r"^[ \t]*\|(.*)\|[ \t]*$", lambda m: ", ".join(c.strip() for c in m[1].split("|"))),
    _rule(r"^[ \t]*(?:[-*_][ \t]*){3,}$", ""),
    _rule(r"^[ \t]{0,3}#{1,6}[ \t]+(.*?)[ \t#]*$", r"\1"),
    _rule(r"^[ \t]*(?:>[ \t]?)+", ""),
    _rule(r"^[ \t]*[-*+•◦▪‣][ \t]+(?:\[[ xX]\][ \t]+)?", ""),
    _rule(_LINK, r"\1"),
    # Links whose addresses are written elsewhere, and there
    _rule(
        r"^[ \t]*\[[^\[\]\n]{1,100}\]:[ \t]*<?https?://\S{1,500}"
        r"(?:[ \t]+\"[^\"\n]{0,100}\")?[ \t]*$",
        "",
    ),
    _rule(r"\[([^\[\]\n]{1,300})\]\[\d{1,3}\]", r"\1"),
    _rule(r"[ \t]*\[\^?\d{1,3}\]", ""),
    _rule(r"<((?:https?://|mailto:)[^\s<>]{1,300})>", r"\1"),
    _rule(r"`+([^`\n]*)`+", r"\1"),
    _rule(r"\*\*+|~~+", ""),
    _rule(_EMPHASIS, ""),
)
_ANY_MARKDOWN = re.compile(r"[`*_#|~>\[]|^[ \t]*[-+•◦▪‣][ \t]", re.MULTILINE)


def _unwritten(text: str) -> str:
    """Without what no one would read aloud in any language: controls, entities, Markdown."""
    if "&" in text:
        text = _ENTITIES.sub(lambda m: unescape(m[0]), text)
    text = _GAPS.sub(" ", _CONTROLS.sub("", _LINE_ENDS.sub("\n", text)))
    if not text.isascii():
        text = _HALVES.sub("", text)
        text = _EMOJI.sub(lambda m: "" if m[1] is not None else " ", text)
    if "-->" in text or "</" in text:
        text = _HIDDEN.sub(" ", text)
    text = _PICTURE_NAME.sub("", text)
    if _ANY_MARKDOWN.search(text):
        text = rewritten(text, _MARKDOWN)
    return text


_LINES = re.compile(r" ?(?:\n ?)+")
_CONTROL_HALVES = re.compile(r"<\|speaker:\d{1,3}\|>|<\||\|>")


def _as_written(text: str) -> str:
    """The S2 family's: cleaned, with ``[tags]`` and speaker marks kept, control tokens not."""
    text = ELEMENT.sub(" ", _unwritten(text))
    text = CONTROL_MARK.sub(lambda m: m[0] if SPEAKER.fullmatch(m[0]) else " ", text)
    text = _CONTROL_HALVES.sub(lambda m: m[0] if len(m[0]) > 2 else " ", text)
    text = _LINES.sub("\n", _GAPS.sub(" ", text)).strip()
    return text if ALNUM.search(SPEAKER.sub("", text)) else ""


def plain(text: str) -> str:
    """One line of bare text for models that know no marks: tags, cues and elements are dropped."""
    text = _unwritten(text)
    if "<" in text:
        text = ELEMENT.sub(" ", CONTROL_MARK.sub(" ", text))
    if "[" in text:
        text = TAG.sub(" ", text)
    if "(" in text:
        text = CUE.sub(" ", text)
    return _PARAGRAPH.sub(_join_lines, text) if "\n" in text else text


_PARAGRAPH = re.compile(r"(\S?)[ \t]*\n(\s*)")


def _join_lines(found: Match) -> str:
    before = found[1]
    if not before or before in ".!?…,;:-":
        return f"{before} "
    return f"{before}. " if "\n" in found[2] else f"{before}, "
