"""Numbers, money, dates, times and units as people write them, into English words.

An ordered table of patterns; each takes what it knows and leaves words without digits behind.
Knows nothing of markup, abbreviations or the alphabet of a voice. Pure; any thread. Every pattern
is linear and no match grows by more than a constant factor.
"""

from __future__ import annotations

import re

from num2words import num2words  # pyright: ignore  it ships no types

from .rewriting import Match, Rule, rewritten, rule
from .units import CODES, CURRENCIES, SCALES, UNITS

_NUM = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_SCALE = r"(k|K|[mM]|bn|[Bb]|thousand|million|billion)\b"
_PER = {"mo": "month", "yr": "year", "hr": "hour", "h": "hour", "s": "second", "min": "minute"}
_MONTHS = (
    "January February March April May June July August September October November December"
).split()
_MONTH = (
    r"(Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)


_UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
_DENOMINATORS = {2: "half", 3: "third", 4: "quarter", **{n: "" for n in (5, 6, 7, 8, 9, 12, 16)}}
_ODD_SLASHES = {"24/7": "twenty-four seven", "9/11": "nine eleven", "50/50": "fifty-fifty"}


# Words -------------------------------------------------------------------------------------------


def _words(value: int, to: str = "cardinal") -> str:
    return str(num2words(value, to=to))  # pyright: ignore  it ships no types


def cardinal(digits: str) -> str:
    """Words for a run of digits; what no one reads as one number is read digit by digit."""
    digits = digits.replace(",", "")
    if len(digits) > 12 or (digits[0] == "0" and len(digits) > 1):
        return one_by_one(digits)
    return _words(int(digits))


def ordinal(digits: str) -> str:
    return _words(int(digits[:12]), "ordinal")


def year(digits: str) -> str:
    return _words(int(digits), "year")


def one_by_one(digits: str) -> str:
    return " ".join(_words(int(d)) for d in digits if d.isdigit())


def number(text: str) -> str:
    """Words for ``1,234.50``: all decimals are read, each by itself."""
    whole, _, decimals = text.partition(".")
    words = cardinal(whole)
    return f"{words} point {one_by_one(decimals)}" if decimals else words


def _plural(words: str) -> str:
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


def _is_one(text: str) -> bool:
    return text == "1"


# Rules -------------------------------------------------------------------------------------------


def _groups(found: Match) -> str:
    plus = "plus " if found[0].startswith("+") else ""
    return " " + plus + ", ".join(map(one_by_one, re.findall(r"\d+", found[0]))) + " "


def _seven(found: Match) -> str:
    if found[1].endswith("0") and found[2].endswith("00"):
        return found[0]  # 500-1000 is a range
    return _groups(found)


def _full_date(month: int, day: str, years: str) -> str:
    return f"{_MONTHS[month - 1]} {ordinal(day)}, {_year_of(years)}"


def _year_of(digits: str) -> str:
    return year(digits) if len(digits) == 4 else one_by_one(digits)


def _iso_date(found: Match) -> str:
    month, day = int(found[2]), int(found[3])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return _groups(found)
    at = f" at {found[4]} " if found[4] else " "
    return f" {_full_date(month, found[3], found[1])}{at}"


def _slash_date(found: Match) -> str:
    if found[2] in ".-" and len(found[4]) == 2:
        return found[0]  # a version
    first, second = int(found[1]), int(found[3])
    if found[2] == "." or first > 12:
        first, second = second, first
    if not (1 <= first <= 12 and 1 <= second <= 31):
        return _groups(found)
    years = found[4] if len(found[4]) == 4 else ("19" if found[4] > "69" else "20") + found[4]
    return f" {_full_date(first, str(second), years)} "


def _month_slash_day(found: Match) -> str:
    month, day = int(found[2]), int(found[3])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return found[0]
    return f"{found[1]}{_MONTHS[month - 1]} {ordinal(found[3])}"


def _month_name(abbreviated: str) -> str:
    return next(m for m in _MONTHS if m.startswith(abbreviated[:3]))


def _month_day(found: Match) -> str:
    words = f"{_month_name(found[1])} {ordinal(found[2])}"
    if found[3]:
        words += f" to {ordinal(found[3])}"
    return words + (f", {year(found[4])}" if found[4] else "")


def _day_month(found: Match) -> str:
    words = f"the {ordinal(found[2])} of {_month_name(found[3])}"
    return words + (f", {year(found[4])}" if found[4] else "")


def _range(found: Match) -> str:
    if found[0].replace(" ", "") == "50-50":
        return "fifty-fifty"
    return f"{found[1]} to {found[2]}"


def _clock(hours: str, minutes: str | None) -> str:
    said = _words(int(hours))
    if minutes is None or minutes == "00":
        return said
    return f"{said} {'oh ' if minutes[0] == '0' else ''}{_words(int(minutes))}"


def _half_day(found: Match) -> str:
    stop = "." if found[4] and found[5] else ""
    return f"{_clock(found[1], found[2])} {found[3].lower()} m{stop}"


def _time(found: Match) -> str:
    hours, minutes, seconds = found[1], found[2], found[3]
    if seconds is not None:
        return f"{_clock(hours, minutes)} {_clock(seconds, None)}"
    if int(minutes) > 59:
        return f"{cardinal(hours)} to {cardinal(minutes)}"
    return _clock(hours, minutes) if minutes != "00" else f"{_clock(hours, None)} o'clock"


def _money(amount: str, sign: str, scale: str | None, minus: str) -> str:
    one, many, small_one, small_many = CURRENCIES[sign]
    minus = "minus " if minus else ""
    if scale:
        return f"{minus}{number(amount)} {SCALES.get(scale.lower(), scale.lower())} {many}"
    whole, _, decimals = amount.replace(",", "").partition(".")
    if len(decimals) not in (0, 2):
        return f"{minus}{number(amount)} {many}"
    parts: list[str] = []
    if int(whole[:15]) or not int(decimals or "0"):
        parts.append(f"{cardinal(whole)} {one if _is_one(whole) else many}")
    if decimals and int(decimals):
        small = _words(int(decimals))
        parts.append(f"{small} {small_one if decimals == '01' else small_many}")
    return minus + " and ".join(parts)


def _money_before(found: Match) -> str:
    per = f" per {_PER.get(found[5], found[5])}" if found[5] else ""
    return f" {_money(found[3], found[2], found[4], found[1])}{per}" + ("" if per else " ")


def _money_after(found: Match) -> str:
    amount = found[2].replace(",", ".") if re.fullmatch(r"\d+,\d\d", found[2]) else found[2]
    return f" {_money(amount, CODES[found[4]], found[3], found[1])} "


def _money_range(found: Match) -> str:
    first, last = (f" {SCALES.get(s.lower(), s.lower())}" if s else "" for s in found.group(3, 5))
    first = "" if first == last else first
    return f" {number(found[2])}{first} to {number(found[4])}{last} {CURRENCIES[found[1]][1]} "


def _feet_inches(found: Match) -> str:
    feet = "foot" if _is_one(found[1]) else "feet"
    inches = "inch" if _is_one(found[2]) else "inches"
    return f"{cardinal(found[1])} {feet} {cardinal(found[2])} {inches}"


def _unit(found: Match) -> str:
    if found[3] in ("B", "M") and re.match(r"\s[A-Z]", found.string[found.end() :][:2]):
        return found[0]  # 221B Baker Street
    minus = "minus " if found[1] else ""
    one, many = UNITS[found[3]]
    unit = one if _is_one(found[2]) else many
    power = {"2": "square ", "3": "cubic "}.get(found[4] or "", "")
    said = f"{minus}{number(found[2])} {power}{unit}"
    if found[5]:
        said += f" per {UNITS[found[5]][0]}"
        said += {"2": " squared", "3": " cubed"}.get(found[6] or "", "")
    return said + " "


def _unit_plural_decade(found: Match) -> str:
    return f"{found[1]}{_plural(_words(int(found[2])))}"


def _version(found: Match) -> str:
    return f"version {' point '.join(map(cardinal, found[1].split('.')))} "


def _dotted(found: Match) -> str:
    parts = found[0].split(".")
    address = len(parts) == 4 and all(len(p) <= 3 and int(p) < 256 for p in parts)
    return f" {(' dot ' if address else ' point ').join(map(cardinal, parts))} "


def _fraction(found: Match) -> str:
    whole, top, bottom = found[1], found[2], found[3]
    if (odd := _ODD_SLASHES.get(f"{top}/{bottom}")) and not whole:
        return odd
    up, down = int(top[:6]), int(bottom[:6])
    name = _DENOMINATORS.get(down)
    if name is None or not 0 < up < down:
        joint = " out of " if down in (10, 100) and up <= down else " over "
        lead = f"{cardinal(whole)} and " if whole else ""
        return f"{lead}{cardinal(top)}{joint}{cardinal(bottom)} "
    name = name or ordinal(bottom)
    if whole and up == 1 and down in (2, 4):
        part = f"a {name}"
    elif up == 1:
        part = f"one {name}"
    else:
        part = f"{cardinal(top)} {'halves' if down == 2 else name + 's'}"
    return f"{cardinal(whole)} and {part} " if whole else f"{part} "


def _fraction_of(found: Match) -> str:
    one, many = UNITS[found[4]]
    return f"{_fraction(found)}{many if found[1] else one} "


def _years(found: Match) -> str:
    words = year(found[1])
    return _plural(words) if found[2] else words


_RULES: tuple[Rule, ...] = (
    # No one reads these as numbers, and shorter runs keep every pattern below linear.
    rule(r"(?<=\d)\.(\d{21,})(?!\.\d)", lambda m: f" point {one_by_one(m[1])} "),
    rule(r"\d{21,}", lambda m: f" {one_by_one(m[0])} "),
    # Telephone and card numbers, before anything else makes ranges or fractions of them.
    rule(r"\+\d{1,3}(?:[ .-]?\(?\d{1,4}\)?){2,6}(?![\w%])", _groups),
    rule(r"\(\d{3}\)[ .-]?\d{3}[ .-]\d{4}\b", _groups),
    rule(r"(?<![\w.,-])(?:1[-. ])?\d{3}([-. ])\d{3}\1\d{4}(?![\w-])", _groups),
    rule(r"(?<![\w.,-])\d{4}([ -])\d{4}\1\d{4}\1\d{1,4}(?![\w-])", _groups),
    rule(r"(?<![\w.,-])\d{3}-\d{2}-\d{4}(?![\w-])", _groups),
    rule(r"(?<![\w.,$€£-])(\d{3})-(\d{4})(?![\w-])", _seven),
    rule(r"(?i)\b((?:call|dial|phone) )(\d{3})\b", lambda m: m[1] + one_by_one(m[2])),
    rule(r"(?<!\w)\+(?=\d)", "plus "),
    # Dates
    rule(r"\b(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d:\d\d)(?::\d\d(?:\.\d+)?)?Z?)?\b", _iso_date),
    rule(r"(?<![\w./-])(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d\d)(?![\w/-]|\.\d)", _slash_date),
    rule(
        rf"\b{_MONTH}\.? (\d{{1,2}})(?:st|nd|rd|th)?(?:\s?[-–]\s?(\d{{1,2}})(?:st|nd|rd|th)?)?"
        rf"(?:,? (\d{{4}}))?\b(?![:/\d]|\.\d)",
        _month_day,
    ),
    rule(
        rf"\b([Tt]he )?(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?{_MONTH}(?:\.?,? (\d{{4}}))?(?![\w/])",
        _day_month,
    ),
    rule(
        r"(?i)\b((?:by|on|until|till?|since|after|before|due|[a-z]{3,6}day),? )"
        r"(\d{1,2})/(\d{1,2})(?![\w/])",
        _month_slash_day,
    ),
    # Ranges, whatever unit follows
    rule(
        rf"([$€£])({_NUM})(?:\s?{_SCALE})?(?:[-–]|\s[-–]\s|\s?–\s?)\1?({_NUM})(?:\s?{_SCALE})?",
        _money_range,
    ),
    rule(
        r"(?<![\w.,-])([$€£]?\d[\d,.]*(?::\d\d)?[%°]?)\s?(?:(?<=\S)[-–]|(?<=\s)[-–](?![$€£]))\s?"
        r"([$€£]?\d[\d,.]*(?::\d\d)?)(?![-–]?\d)",
        _range,
    ),
    rule(r"(?<=\d)-(?=\d)", " "),
    rule(r"(?<=\.\d|\d\d):(\d{3,5})\b", r" port \1"),
    # Times
    rule(
        r"\b(\d{1,2})(?::(\d\d))?\s?([AaPp])\.?\s?[Mm](\.)?(?!\w)(?=(\s+[A-Z][a-z])?)",
        _half_day,
    ),
    rule(r"\b(\d{1,2}):(\d\d)(?::(\d\d))?\b", _time),
    rule(r"(?<=\d):(?=\d)", " to "),
    # Money
    rule(
        rf"(-)?(?:\b(?:US|CA|AU|NZ|[ACS]))?([$€£¥₹])\s?({_NUM})"
        r"(?:\s?(k|K|[mM]|bn|[Bb]|tn|thousand|million|billion|trillion)\b)?"
        r"(?:/([a-z]{1,12})\b)?",
        _money_before,
    ),
    rule(
        rf"(-)?(?<![\w.,])(\d+,\d\d(?=\s?€)|{_NUM})\s?(thousand|million|billion|trillion)?\s?"
        r"(€|£|\$|(?:USD|EUR|GBP|JPY|INR)\b)",
        _money_after,
    ),
    rule(r"(?<=\d)\s?¢", " cents"),
    # Units
    rule(r"\b(\d+)'\s?(\d{1,2})(?:\"|''|(?!\w))", _feet_inches),
    rule(r"\b(\d+)\s?ft\.?\s(\d+)\s?in\b", _feet_inches),
    rule(
        r"(?i)\b((?:the|early|late|mid|my|her|his|their|our|your)[ -])'?(\d0)'?s\b",
        _unit_plural_decade,
    ),
    rule(r"()(?<!\w)'(\d0)s\b", _unit_plural_decade),
    rule(r"\b(1[1-9]\d\d|20\d\d)('?s)\b", _years),
    rule(r"(?<![A-WYZa-wyz_])(\d+)\s?[xX](?=\s?\d)", r"\1 by "),
    rule(rf"(?<![\w/.,])(?:(\d+) )?(\d)/(\d{{1,2}}) ?({_UNIT})(?![\w+#'/-]|\.\w)", _fraction_of),
    rule(
        rf"(?<![\w.,])(-)?({_NUM})[ -]?({_UNIT})(?:\^([23]))?(?:/({_UNIT})(?:\^([23]))?)?"
        r"(?![\w+#'/]|\.\w)",
        _unit,
    ),
    rule(r"\^2\b", " squared"),
    rule(r"\^3\b", " cubed"),
    rule(r"(?<=\d)\s?%", " percent"),
    rule(r"(?<=[A-Za-z])-(?=\d)|(?<=\d)-(?=[A-Za-z])", " "),
    # Versions, addresses
    rule(r"\b[vV](\d+(?:\.\d+)*)\b", _version),
    rule(r"\d+(?:\.\d+){2,}", _dotted),
    # Fractions
    rule(r"(?<=\d)(\.\d+)/(?=\d)", r"\1 out of "),
    rule(r"(?<![\w/.])(?:(\d+) )?(\d+)/(\d+)(?![\w/])", _fraction),
    # Single numbers
    rule(r"\b(\d+)(?:st|nd|rd|th)\b", lambda m: ordinal(m[1])),
    rule(r"(?<![\w)\]}.-])-(?=\.?\d)", "minus "),
    rule(r"(?<=\d)\+(?!\w)", " plus"),
    rule(r"(?<=[A-Za-z])\d{4,}", lambda m: f" {one_by_one(m[0])} "),
    rule(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", lambda m: f" {number(m[0])} "),
    rule(r"\b(1[1-9]\d\d|20[1-9]\d)()\b(?!\.\d)", _years),
    rule(r"\d+\.\d+", lambda m: f" {number(m[0])} "),
    rule(r"(?<![\w.])\.(\d+)", lambda m: f"point {one_by_one(m[1])} "),
    rule(r"\d+", lambda m: f" {cardinal(m[0])} "),
)


def spell_numbers(text: str) -> str:
    """All digits of ``text`` in words. Dashes are ``-`` or ``–``, digits are ASCII."""
    return rewritten(text, _RULES)
