"""Numbers that are names, as people say them: rooms, flights, standards, models, decades.

Room 101 is one oh one, a Boeing 747 seven forty-seven, RFC 2119 twenty-one nineteen; 60s music is
the sixties'. Part of the English front end, among the rarer ways to write that become words before
symbols and numbers do. Knows nothing of markup. Pure; any thread; every pattern is linear.
"""

from __future__ import annotations

from .numerals import cardinal, number
from .rewriting import Match, Rule, rule

_NAMED = (
    r"room|rm|suite|apartment|apt|unit|gate|flat|office|locker|flight|route|highway|interstate|bus"
    r"|train|channel|rfc|iso|iec|form|section|error|http|status|status code|extension|intel|boeing"
    r"|airbus|peugeot|porsche"
)
_OF_A_DECADE = (
    r"music|songs?|hits?|pop|rock|disco|soul|punk|funk|jazz|rap|tunes?|bands?|films?|movies?|TV"
    r"|television|sitcoms?|cartoons?|shows?|style|styles|fashion|clothes|clothing|hair|haircuts?"
    r"|look|kids?|child|children|era|nostalgia|vibes?|theme|themed|party|parties|classics?|icons?"
    r"|cars?|design|decor|aesthetic|culture|slang"
)

_MANY = {"10": "tens", "100": "hundreds", "1000": "thousands"}


def paired(digits: str) -> str:
    """Words for the number of a room or a flight: 101 is one oh one, 2119 twenty-one nineteen."""
    first, last = digits[:-2], digits[-2:]
    if len(digits) not in (3, 4) or digits[0] == "0":
        return cardinal(digits)
    if last == "00":
        return cardinal(digits) if first.endswith("0") or len(first) == 1 else _hundreds(first)
    if last[0] == "0":
        if len(first) == 2 and first.endswith("0"):
            return cardinal(digits)
        return f"{cardinal(first)} oh {cardinal(last[1])}"
    return f"{cardinal(first)} {cardinal(last)}"


def _hundreds(first: str) -> str:
    return f"{cardinal(first)} hundred"


def _named(found: Match) -> str:
    return f"{found[1]}{paired(found[2])}"


def _version_of_plane(found: Match) -> str:
    return f"{paired(found[1])} {cardinal(found[2])}"


def _decade(found: Match) -> str:
    return cardinal(found[1])[:-1] + "ies"


def _clock(found: Match) -> str:
    """``8h00`` is a time of the day, ``1h30`` mostly a while."""
    if found[2] == "00" or int(found[1]) > 4:
        return f"{found[1]}:{found[2]}"
    return f"{found[1]} h {found[2]} min"


def _size(found: Match) -> str:
    """Of a language model: ``-8B``."""
    by = f"{cardinal(found[1])} by " if found[1] else ""
    comma = "," if found.string[found.start() - 1].isdigit() else ""
    return f"{comma} {by}{number(found[2])} B"


RULES: tuple[Rule, ...] = (
    rule(rf"(?<![\w.'$])([2-9]0)s(?=(?:,|,? (?:and|or)) [2-9]0s (?:{_OF_A_DECADE})\b)", _decade),
    rule(rf"(?<![\w.'$])([2-9]0)s(?= (?:{_OF_A_DECADE})\b)", _decade),
    rule(r"(?<![\w.'$])(10|100|1000)s(?= of )", lambda m: _MANY[m[1]]),
    rule(r"(?<![\w.:])([01]?\d|2[0-4])h([0-5]\d)(?!\w)", _clock),
    rule(
        r"(?i:(?<!section )(?<!article )(?<!item )(?<!figure )(?<!table )(?<!flat )(?<!unit ))"
        r"(?<![\w.,$-])([1-9]\d)c(?![\w'/-])",
        lambda m: f"{cardinal(m[1])} cents",
    ),
    rule(r"(?<=\w)-(?:(\d{1,2})x)?(\d{1,4}(?:\.\d{1,2})?)B(?![\w'/])", _size),
    rule(r"(?<![\w.,-])(7[0-8]7)-(\d{1,3})(?![\w-]|\.\d)", _version_of_plane),
    rule(r"(?<![\w.,-])([Aa] )(7[0-8]7)(?![\w-]|[.,]\d)", _named),
    rule(r"\b(A)(3[0-9]0)\b", lambda m: f"{m[1]} {paired(m[2])}"),
    rule(rf"(?i)(?<![\w.-])((?:{_NAMED})[ -])(\d{{3,4}})(?![\w%$-]|[.,:/]\d)", _named),
)
