"""Which language a text is in, as far as its script alone can tell. Pure; any thread."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_SCRIPTS: Final = (
    ("ja", re.compile(r"[\u3040-\u30ff]")),
    ("ko", re.compile(r"[\u1100-\u11ff\uac00-\ud7af]")),
    ("zh", re.compile(r"[\u4e00-\u9fff]")),
    ("ar", re.compile(r"[\u0600-\u06ff]")),
    ("th", re.compile(r"[\u0e00-\u0e7f]")),
    ("el", re.compile(r"[\u0370-\u03ff]")),
    ("he", re.compile(r"[\u0590-\u05ff]")),
)


def script_language(texts: Iterable[str]) -> tuple[str, ...]:
    """The language, or nothing where its script is that of many."""
    text = " ".join(texts)
    return next(((code,) for code, script in _SCRIPTS if script.search(text)), ())
