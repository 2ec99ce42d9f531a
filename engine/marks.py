"""What in running text is a mark and not words: ``[...]``, ``<...>``, ``<|...|>`` and cues.

Pure functions and patterns, shared by the text feed (which never cuts into a mark) and by the
front ends (which keep or drop them). Knows nothing of sentences, models or time. Any thread.
"""

from __future__ import annotations

import re

SPEAKER = re.compile(r"<\|speaker:(\d{1,3})\|>")
"""The one ``<|...|>`` mark that is text: who speaks from here on."""

CUES = frozenset(
    "angry|sad|excited|surprised|satisfied|delighted|scared|worried|upset|nervous|frustrated"
    "|depressed|empathetic|embarrassed|disgusted|moved|proud|relaxed|grateful|confident|interested"
    "|curious|confused|joyful|happy|calm|fearful|disdainful|unhappy|anxious|hysterical|indifferent"
    "|uncertain|doubtful|optimistic|pessimistic|nostalgic|lonely|bored|contemptuous|sympathetic"
    "|compassionate|determined|resigned|hopeful|impatient|guilty|scornful|panicked|furious"
    "|reluctant|keen|disapproving|negative|denying|astonished|serious|sarcastic|conciliative"
    "|comforting|sincere|sneering|hesitating|yielding|painful|awkward|amused|in a hurry tone"
    "|shouting|screaming|whispering|soft tone|laughing|laughs|laugh|chuckling|chuckles|sobbing"
    "|crying loudly|crying|sighing|sighs|sigh|panting|groaning|groans|gasps|gasping|yawning"
    "|coughs|clears throat|sniffs|crowd laughing|background laughter|audience laughing|break"
    "|long-break|breath|pause|whispers|singing".split("|")
)
"""Acting directions of this model family that stand alone in parentheses and are never spoken."""

ALNUM = re.compile(r"[^\W_]")
"""A letter or a digit of any script."""

CONTROL_MARK = re.compile(r"<\|[^<>|]{0,200}\|>")
"""``<|...|>``: what a model's special tokens look like."""

TAG = re.compile(r"\[[^\[\]\n]{0,200}\]")
"""``[...]``: an acting direction to models that know them."""

ELEMENT = re.compile(r"<(?!https?:|mailto:)[/!]?[A-Za-z][^<>\n]{0,200}>")
"""``<...>``: SSML or HTML."""

CUE = re.compile(rf"\((?:{'|'.join(sorted(CUES, key=len, reverse=True))})\)", re.IGNORECASE)
"""An acting direction in parentheses."""

_UNSPOKEN = re.compile(
    f"{CONTROL_MARK.pattern}|{TAG.pattern}|{ELEMENT.pattern}|{CUE.pattern}", re.I
)

ORDINARY = -1
UNFINISHED = 0


def speakable(text: str) -> bool:
    """Whether a letter or digit stands outside marks. A front end may still find nothing to say."""
    if "[" in text or "<" in text or "(" in text:
        text = _UNSPOKEN.sub(" ", text)
    return ALNUM.search(text) is not None


def mark_end(text: str, start: int, closed: bool, most: int) -> int:
    """Where the mark that opens at ``start`` ends, or ORDINARY, or UNFINISHED.

    Longer than ``most`` characters, over a line's end or with a second opener inside it is
    ordinary text. ``closed``: no more text follows.
    """
    opener = text[start]
    if opener == "<":
        if start + 1 >= len(text):
            return ORDINARY if closed else UNFINISHED
        if not (text[start + 1] in "|/!" or text[start + 1].isalpha()):
            return ORDINARY
    closer = {"[": "]", "(": ")", "<": ">"}[opener]
    limit = start + most
    stop = text.find(closer, start + 1, limit)
    if (newline := text.find("\n", start + 1, limit)) != -1 and (stop == -1 or newline < stop):
        return ORDINARY
    again = text.find(opener, start + 1, limit if stop == -1 else stop)
    if again != -1:
        return ORDINARY  # the inner one is the mark, if any is
    if stop == -1:
        return UNFINISHED if len(text) < limit else ORDINARY
    if opener == "[" and text.startswith("(", stop + 1):  # a Markdown link
        link = text.find(")", stop + 2, limit)
        if link != -1 and not re.search(r"\s", text[stop + 2 : link]):
            return link + 1
    return stop + 1


def never_spoken(rest: str) -> bool:
    """Whether an unfinished mark is one: a parenthesis counts only as the start of a cue."""
    if rest[0] != "(":
        return True
    begun = rest[1:].strip().lower()
    return len(begun) >= 3 and any(cue.startswith(begun) for cue in CUES)
