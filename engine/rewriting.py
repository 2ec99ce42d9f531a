"""Rules that rewrite text: a pattern, and what stands for each place that it matches.

What the parts of the English front end share. Knows nothing of language. Pure; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Match = re.Match[str]
Rule = tuple[re.Pattern[str], "str | Callable[[Match], str]"]


def rule(pattern: str, said: str | Callable[[Match], str], flags: int = 0) -> Rule:
    return re.compile(pattern, flags), said


def rewritten(text: str, rules: Iterable[Rule]) -> str:
    """``text`` after each of ``rules`` in order."""
    for pattern, said in rules:
        text = pattern.sub(said, text)
    return text
