"""Rarer ways to write numbers, places and asides, into the common ones that the other tables know.

``1 000 000`` becomes ``1,000,000``, ``1h30m`` becomes ``1 h 30 min``, ``Apt. 4B`` and ``your code
is 4821`` become words, ``:)`` becomes nothing. Part of the English front end, after addresses and
before symbols and numbers. Knows nothing of markup. Pure; any thread; every pattern is linear.
"""

from __future__ import annotations

import re

from . import labels
from .numerals import cardinal, one_by_one
from .rewriting import Match, Rule, rewritten, rule
from .units import CODES

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DAYS = {
    "Mon": "Monday", "Tue": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday", "Fri": "Friday",
    "Sat": "Saturday", "Sun": "Sunday",
}  # fmt: skip
_DAY = r"(Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)"
_ROADS = {
    "St": "Street", "Dr": "Drive", "Ave": "Avenue", "Rd": "Road", "Blvd": "Boulevard",
    "Ln": "Lane", "Ct": "Court", "Sq": "Square", "Pkwy": "Parkway",
}  # fmt: skip
_LENGTHS = {
    "ft": "feet", "m": "meters", "km": "kilometers", "mi": "miles", "in": "inches", "yd": "yards",
    "cm": "centimeters",
}  # fmt: skip
_COMPASS = {"N": "north", "S": "south", "E": "east", "W": "west"}
_BEFORE_NUMBERS = {
    "ch": "chapter", "p": "page", "pg": "page", "ex": "example", "eq": "equation",
    "art": "article", "nos": "numbers", "apt": "apartment", "ste": "suite",
}  # fmt: skip


def _day(found: Match) -> str:
    return _DAYS[found[1][:3]]


def _days(found: Match) -> str:
    return f"{_DAYS[found[1][:3]]} to {_DAYS[found[2][:3]]}"


def _road(found: Match) -> str:
    return f"{found[1]} {_ROADS[found[2]]}"


def _before_number(found: Match) -> str:
    said = _BEFORE_NUMBERS[found[1].lower()]
    return (said.capitalize() if found[1][0].isupper() else said) + " "


def _digit_groups(found: Match) -> str:
    return " " + ", ".join(one_by_one(part) for part in re.findall(r"\d+", found[0])) + " "


def _hundreds(digits: str) -> str:
    return cardinal(digits) if digits.endswith("00") else one_by_one(digits)


def _two_parts(found: Match) -> str:
    return f"{cardinal(found[1])} {cardinal(found[2])} {found[3]}"


def _power_of_ten(found: Match) -> str:
    minus = "minus " if found[2] == "-" else ""
    return f"{found[1]} times ten to the power of {minus}{cardinal(found[3])} "


def _lasting(found: Match) -> str:
    parts = zip(found.groups(), ("h", "min", "s"), strict=True)
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


_FACES: tuple[Rule, ...] = (
    rule(r"(?<![^\s.,!?])[:;=]['^-]?[)(\]DPp|/\\*](?![\w/])", " "),
    rule(r"(?<!\S)<3(?=[\s.!?]*$)", " "),
)
_WORDS: tuple[Rule, ...] = (
    # Words in straight single quotes; an apostrophe in front of a shortened word is none.
    rule(
        r"(?<![\w'])'(?!(?:n|em|til|tis|twas|cause|round)\b|[\d\s'])"
        r"((?:[^'\n]|(?<=\w)'(?=\w)){1,200})(?<!\s)'(?!\w)",
        r"\1",
    ),
    rule(r"(?<![\w/])([Hh]e|[Hh]is|[Hh]im)/(she|hers?)(?![\w/])", r"\1 or \2"),
    rule(r"(?<=[A-Za-z]{2}) > (?=[A-Z][a-z])", ", "),  # what to click, one after another
    rule(r"(?<![\w/])c/o(?![\w/])", "care of"),
    rule(r"(?<![\w/])(?<!\d )km/h(?![\w/])", "kilometers per hour"),
    rule(r"\bP\.? ?O\.? Box\b", "P O Box"),
    rule(rf"\b{_DAY}\s?[-–]\s?{_DAY}\b(?!')", _days),
)
_NUMBERS: tuple[Rule, ...] = (
    # Written otherwise elsewhere
    rule(
        r"(?<![\w.,-])(?:[1-9]\d?(?: \d{3}){2,4}|[1-9]\d{0,2}(?: 000){1,4})(?![\w-]|,\d|[ .]\d)",
        lambda m: m[0].replace(" ", ","),
    ),
    rule(
        r"(?<![\w.,])(\d{1,3}(?:\.\d{3}){1,4}),(\d\d)(?![\w,]|\.\d)",
        lambda m: f"{m[1].replace('.', ',')}.{m[2]}",
    ),
    rule(r"([$€£]) ?(\d{1,4}),(\d\d)(?![\w,])", r"\1\2.\3"),
    rule(r"(?<![\w.,'])\d{1,3}(?:'\d{3}){1,4}(?![\w'])", lambda m: m[0].replace("'", ",")),
    rule(r"\b(USD|EUR|GBP|JPY|INR) (?=\d)", lambda m: CODES[m[1]]),
    rule(r"([$€£])\.(\d\d)(?!\d)", r"\g<1>0.\2"),
    rule(r"(?<![\w.#-])(\d{1,9}(?:\.\d{1,9})?)[eE]([+-]?)(\d{1,3})(?![\w.-])", _power_of_ten),
    rule(r"(?<=\d) / (?=\d[\d.,]{0,15} ?=)", " divided by "),
    rule(r"(?<=\d) / (?=\d)", "/"),
    # Read digit by digit, or by halves
    rule(r"(?<![\w.,/-])\d{1,7}(?:-\d{1,7}){3,8}(?![\w:-])", _digit_groups),
    rule(r"(?<![\w.,-])(?:\(0\d{1,4}\)|0\d{1,4})(?:[ -]\d{3,8}){1,3}(?![\w-])", _digit_groups),
    rule(r"(?<=\bUTC|\bGMT) ?([+-])(?=\d)", lambda m: " plus " if m[1] == "+" else " minus "),
    rule(
        r"(?<![\w-])1-(\d{3})-([A-Z]{4,12})(?![\w-])",
        lambda m: f"one {_hundreds(m[1])} {m[2].lower()}",
    ),
    rule(
        r"(?i)\b((?:codes?|pin|otp|zip|account number|tracking number|confirmation number"
        r"|reference number|order number|case number|ticket number)(?: is|:)? )(\d{4,12})"
        r"(?![\w-]|[.,:/]\d)",
        lambda m: f"{m[1]}{one_by_one(m[2])}",
    ),
    rule(r"(?i)\b(area code )(\d{3})\b", lambda m: f"{m[1]}{one_by_one(m[2])}"),
    rule(r"\b([A-Z]{2}) (\d{5})(?![\w,-]|\.\d)", lambda m: f"{m[1]} {one_by_one(m[2])}"),
    rule(
        r"\b([A-Z])\.(\d)(\d\d)(?![\w.])|\b([A-Z])\.(\d)(\d\d)(?=\.\s|\.$)",
        lambda m: " ".join((m[1] or m[4], cardinal(m[2] or m[5]), cardinal(m[3] or m[6]))),
    ),
    rule(
        r"\b802\.(\d{1,2})([a-z]{0,2})\b",
        lambda m: f"eight oh two dot {cardinal(m[1])} {' '.join(m[2]).upper()}",
    ),
    rule(r"\b(4|7|10|14|21)(20|40|60|80)(p|i)\b", _two_parts),
    rule(
        r"\b(\d\d)([1-9]\d) ?[x×] ?(\d\d)([1-9]\d)\b",
        lambda m: f"{cardinal(m[1])} {cardinal(m[2])} by {cardinal(m[3])} {cardinal(m[4])}",
    ),
    rule(
        r"\b0x([\dA-Fa-f]{1,16})\b",
        lambda m: "hex " + " ".join(one_by_one(c) or c.upper() for c in m[1]),
    ),
    rule(r"(?<=\blocalhost):(?=\d)", " port "),
    rule(
        r"\b([48])K(?= (?:video|resolution|monitor|TV|display|screen|HDR|UHD|footage|streaming))",
        lambda m: f"{cardinal(m[1])} K",
    ),
    # Places
    rule(
        rf"(?<![\w.])(\d{{1,5}}[A-Z]?(?: (?!{_MONTH})[A-Z][a-z]{{1,20}}){{1,3}}) "
        r"(St|Ave|Rd|Blvd|Ln|Ct|Sq|Pkwy|Dr(?!\.? [A-Z](?!pt\b|uite)))\b\.?(?=$|[\s,;])",
        _road,
    ),
    rule(r"\b([Aa]pt|[Ss]te|[Cc]h|[Pp]g?|Ex|[Ee]q|Art|[Nn]os)\. ?#?(?=\d)", _before_number),
    rule(
        r"(?i)\b((?:apartment|suite|unit|room|gate|seat|flat|platform|row|exit|block) )"
        r"#?(\d{1,4})([a-z])\b",
        lambda m: f"{m[1]}{cardinal(m[2])} {m[3].upper()}",
    ),
    rule(r"° ?([NSEW])(?![\w'])", lambda m: f"° {_COMPASS[m[1]]}"),
    rule(
        r"(?<=\d) ?(sq|cu)\.? ?(ft|km|mi|in|yd|cm|m)\b",
        lambda m: f" {'square' if m[1] == 'sq' else 'cubic'} {_LENGTHS[m[2]]}",
    ),
    rule(r"(?<=\d)( ?(?:tbsp|tsp|oz|lbs?|ft|hrs?|mins?|secs?|yd|gal))\.(?= [a-z])", r"\1"),
    # Times
    rule(r"(?<![\w.])(\d{1,3})h ?(\d{1,2})m(?:in)?(?: ?(\d{1,2})s)?\b", _lasting),
    rule(r"(?<![\w.])()(\d{1,3})m ?(\d{1,2})s\b", _lasting),
    rule(
        r"(?<![\w:])(\d{1,2}:\d\d)\.(\d{1,3})(?![\w:]|\.\d)",
        lambda m: f"{m[1]} point {one_by_one(m[2])}",
    ),
    rule(r"\b(\d{1,2})\.([0-5]\d)(?= ?[AaPp]\.?[Mm]\b)", r"\1:\2"),
    rule(r"(?<=\d[AaPp][Mm])\s?[-–]\s?(?=\d)", " to "),
    rule(r"(?<=\d [AaPp][Mm])\s?[-–]\s?(?=\d)", " to "),
    rule(r"(?<![\w:])00:00(?![\w:]|\.\d)", "midnight"),
    rule(rf"\b{_DAY}\b\.?(?=,? (?:{_MONTH}|\d))", _day),
)


def written_out(text: str) -> str:
    """``text`` in the more common writing. Dashes are ``-`` or ``–``, digits are ASCII."""
    rules = [*_FACES, *_WORDS]
    if any(char.isdigit() for char in text):
        rules += [*_NUMBERS, *labels.RULES]
    return rewritten(text, rules)
