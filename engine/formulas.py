"""LaTeX in running text, as language models write it, into words and plain symbols.

``$E = mc^2$`` loses its dollars, ``\\frac{a}{b}`` becomes ``a over b``. Knows nothing of numbers or
Markdown, and leaves prices alone. Pure; any thread; every pattern is bounded.
"""

from __future__ import annotations

import re

from .rewriting import Match, Rule, rewritten

_DOLLARS = re.compile(
    r"\$\$|(?<![\w$\\])\$(?=\S)(?=[^$\n]{0,200}?[\\^_=])([^$\n]{1,200})(?<=\S)\$(?![\d$])"
)
_BRACES = r"\{([^{}\n]{0,200})\}"
_BOUND = r"(?:\{([^{}\n]{1,40})\}|(\w))"


def _bounds(found: Match) -> str:
    name, low, low_letter, high, high_letter = found.groups()
    return f"\\{name} from {low or low_letter} to {high or high_letter} of "


_RULES: tuple[Rule, ...] = (
    (re.compile(rf"\\(sum|int|prod)_{_BOUND}\^{_BOUND}"), _bounds),
    (re.compile(r"\\[()\[\]]"), " "),
    (re.compile(rf"\\[dt]?frac{_BRACES}{_BRACES}"), r"\1 over \2"),
    (re.compile(rf"\\sqrt{_BRACES}"), r"square root of \1"),
    (re.compile(rf"\\(?:text|math|operatorname)[a-z]{{0,8}}{_BRACES}"), r"\1"),
    (re.compile(r"\^\{([^{}\n]{1,40})\}"), r"^\1"),
    (re.compile(r"_\{([^{}\n]{1,40})\}"), r" \1"),
)
_WORDS = {
    "times": "times", "cdot": "times", "div": "divided by", "pm": "plus or minus",
    "le": "is at most", "leq": "is at most", "ge": "is at least", "geq": "is at least",
    "ne": "does not equal", "neq": "does not equal", "approx": "is about", "infty": "infinity",
    "sum": "the sum", "int": "the integral", "prod": "the product",
    "rightarrow": "to", "left": "", "right": "", "quad": "", "displaystyle": "",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]{2,20})(?![A-Za-z\\])")


def _formula(found: Match) -> str:
    return " " if found[1] is None else f" {found[1]} "


def _command(found: Match) -> str:
    """A Greek letter, and whatever else is not known, by its name."""
    return f" {_WORDS.get(found[1], found[1])} "


def said(text: str) -> str:
    """``text`` without LaTeX."""
    if "$" in text:
        text = _DOLLARS.sub(_formula, text)
    # A path of Windows has backslashes, too, and neither braces nor these.
    if "\\" in text and re.search(r"\\[()\[\]]|\\[A-Za-z]{2,20}[{}_^ ]", text):
        text = _COMMAND.sub(_command, rewritten(text, _RULES))
    return text
