"""Written English into what the built-in voice is given: letters, spaces and ``' , . ! ? -``.

The voice was trained on text that went through the same last step (:func:`_tidy` and the
abbreviations), so ordinary sentences come out exactly as in training; everything before it turns
what people and language models write (addresses, symbols, acronyms, numbers) into such sentences.
Knows nothing of Markdown (see ``frontend.plain``), of segments or of models. Pure; any thread.
"""

from __future__ import annotations

import re
import unicodedata

from .acronyms import begins_sentence, say_capitals
from .numerals import one_by_one, spell_numbers
from .rewriting import Match, Rule, rewritten, rule
from .shorthand import written_out

OUTSIDE = re.compile(r"[^A-Za-z',.!?\- ]+")
"""What the voice has never read."""

# Characters --------------------------------------------------------------------------------------

_FOLD = {
    "‘": "'", "’": "'", "‚": "'", "‛": "'", "′": "'", "´": "'", "`": "'", "ʼ": "'",
    "“": '"', "”": '"', "„": '"', "‟": '"', "«": '"', "»": '"', "″": '"',
    "‐": "-", "‑": "-", "−": "-", "‒": "–", "—": ", ", "―": ", ", "…": "...",
    "½": " 1/2", "⅓": " 1/3", "⅔": " 2/3", "¼": " 1/4", "¾": " 3/4", "⅛": " 1/8", "⅜": " 3/8",
    "⅝": " 5/8", "⅞": " 7/8", "⅕": " 1/5", "⁄": "/", "²": "^2", "³": "^3",
    "™": "", "®": "", "©": "", "µ": "µ", "μ": "µ",
    "№": "No. ", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "ß": "ss", "æ": "ae", "Æ": "Ae",
    "œ": "oe", "Œ": "Oe", "đ": "d", "Đ": "D", "ð": "d", "þ": "th", "Þ": "Th", "ı": "i",
    "。": ". ", "！": "! ", "？": "? ", "，": ", ", "、": ", ", "；": ", ", "：": ", ",
}  # fmt: skip
_QUOTED = re.compile(r"‘([^‘’\n]{0,300})’(?!\w)")
_KEEP = frozenset("€£¥₹¢°×÷≈≠≤≥±→µ–‰∞√§")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def _fold_one(found: Match) -> str:
    char = found[0]
    if (folded := _FOLD.get(char)) is not None:
        return folded
    if char in _KEEP:
        return char
    plain = unicodedata.normalize("NFKD", char)[:4]
    unseen = unicodedata.combining(char) or unicodedata.category(char) == "Cf"
    return "".join(c for c in plain if c.isascii()) or ("" if unseen else " ")


_RAISED = re.compile(r"(?<=[A-Za-z0-9)])(⁻?)([⁰¹²³⁴-⁹]{1,9})")


def _power(found: Match) -> str:
    """``10⁻³`` as ``10^-3``; what is raised behind a word is the number of a footnote."""
    digits = unicodedata.normalize("NFKD", found[2])
    before = found.string[max(0, found.start() - 2) : found.start()]
    word = before[-1].isalpha() and before[:-1].isalpha()
    return "" if word and digits not in ("2", "3") else f"^{'-' * len(found[1])}{digits}"


_GREEK = re.compile(r"(?<![\u0370-\u03ff\u1f00-\u1fff])[Α-Ωα-λν-ω](?![\u0370-\u03ff\u1f00-\u1fff])")


def _letter(found: Match) -> str:
    """A Greek letter by itself is one of a formula; Greek words are another language."""
    name = unicodedata.name(found[0], "").rpartition(" ")[2].lower()
    text, start, end = found.string, *found.span()
    before = " " if text[start - 1 : start].isalnum() else ""
    after = " " if text[end : end + 1].isalnum() else ""
    return f"{before}{'lambda' if name == 'lamda' else name}{after}"


def _fold(text: str) -> str:
    """Accents off, typographic marks to their plain forms, other scripts to spaces."""
    if text.isascii():
        return text
    return _NOT_ASCII.sub(_fold_one, _GREEK.sub(_letter, _RAISED.sub(_power, text)))


# Addresses ---------------------------------------------------------------------------------------

_URL = re.compile(r"(?:(?:https?|ftp)://|(?<![\w.])www\.)[^\s<>\"]{1,400}")
_EMAIL = re.compile(r"(?<![\w.+-])([\w.+-]{1,64})@((?:[\w-]{1,63}\.){1,6}[A-Za-z]{2,12})\b")
_DOMAIN = re.compile(
    r"(?<![\w@.-])((?:[A-Za-z0-9-]{1,63}\.){1,6}"
    r"(?:com|org|net|io|ai|dev|app|co|gov|edu|info|me|uk|de|fr|eu|ca|tv|xyz))(?![\w-]|\.\w)"
    r"(/[^\s<>\"]{0,300})?"
)
_EXTENSION = (
    r"\.(py|js|ts|md|txt|pdf|json|html?|css|csv|png|jpe?g|gif|svg|exe|zip|tar|gz|docx?|xlsx?"
    r"|pptx?|ya?ml|toml|rs|go|sh|cpp|java|mp[34]|wav|log|ini|cfg|sql|ipynb|js|net)\b(?!\.\w)"
)
_FILE = re.compile(rf"(?<=[\w)]){_EXTENSION}")
_PATH_DOT = re.compile(rf"(?<=\w)(?!{_EXTENSION})\.(?=\w)")
_SAID_LABELS = {"io": "I O", "ai": "A I", "uk": "U K", "eu": "E U", "tv": "T V", "de": "D E"}
_MAX_PATH_PARTS = 4


def _label(label: str) -> str:
    return _SAID_LABELS.get(label, label.replace("-", " dash "))


def _host(host: str) -> str:
    host, _, port = host.partition(":")
    labels = [label for label in host.split(".") if label]
    if labels[:1] == ["www"]:
        labels = labels[1:]
    return " dot ".join(map(_label, labels)) + (f" port {port}" if port.isdigit() else "")


def _path(path: str) -> str:
    path = re.split(r"[?#]", path, maxsplit=1)[0]
    parts = [re.sub(r"[-_+%~]+", " ", part) for part in path.split("/") if part]
    parts = [_PATH_DOT.sub(" dot ", part) for part in parts]
    return "".join(f" slash {part}" for part in parts[:_MAX_PATH_PARTS])


def _url(found: Match) -> str:
    whole = found[0].rstrip(".,;:!?'\")*_]}")
    rest = found[0][len(whole) :]
    host, slash, path = re.sub(r"^(?:https?|ftp)://", "", whole).partition("/")
    host = re.split(r"[?#]", host, maxsplit=1)[0].rpartition("@")[2]
    return _host(host) + _path(slash + path) + rest


def _domain(found: Match) -> str:
    path = found[2] or ""
    whole = path.rstrip(".,;:!?'\")*_]}")
    return _host(found[1]) + _path(whole) + path[len(whole) :]


def _email(found: Match) -> str:
    name = found[1].replace(".", " dot ").replace("_", " underscore ").replace("-", " dash ")
    return f"{name.replace('+', ' plus ')} at {_host(found[2])}"


def _addresses(text: str) -> str:
    if "." not in text:
        return text
    if "://" in text or "www." in text:
        text = _URL.sub(_url, text)
    if "@" in text:
        text = _EMAIL.sub(_email, text)
    text = _DOMAIN.sub(_domain, text)
    return _FILE.sub(lambda m: f" dot {_extension(m[1])}", text)


def _extension(name: str) -> str:
    if name in ("go", "java", "log", "zip", "doc", "docx", "toml", "net", "wav", "gif", "tar"):
        return {"docx": "doc X", "gif": "gif"}.get(name, name)
    if name in ("json", "yaml", "yml", "jpg", "jpeg"):
        return {"json": "Jason", "jpg": "jay peg", "jpeg": "jay peg"}.get(name, "yammel")
    return name.upper()


# Symbols -----------------------------------------------------------------------------------------

_SYMBOLS: tuple[Rule, ...] = (
    rule(r"\b([A-Za-z])\+\+", r"\1 plus plus"),
    rule(r"\b([A-GJ])#(?!\w)", r"\1 sharp"),
    rule(r"(?<!\w)\.NET\b", "dot net"),
    rule(r"#(?=\d)", " number "),
    rule(r"#(?=[A-Za-z]{2})", " hashtag "),
    rule(r"#(?=[A-Z]\d)", " number "),
    rule(r"(?<!\w)([A-F])\+(?!\w)", r"\1 plus"),
    rule(r"\bNo\. ?(?=\d)", "Number "),
    rule(r"\bno\. ?(?=\d)", "number "),
    rule(r"[~≈](?=\s?[\d$€£])", " about "),
    rule(r"(?<!\w)w/o\b", "without"),
    rule(r"(?<!\w)w/(?=[\sA-Za-z])", "with "),
    rule(r"\b([A-Z]{1,3})&([A-Z])\b", lambda m: " ".join(m[1]) + f" and {m[2]}"),
    rule(r"&", " and "),
    rule(r"(?<=[\w)])\s?@\s?(?=\w)|(?<!\S)@(?=\w)", " at "),
    rule(r"[=-]>|→|<-", ", "),
    rule(r"(?<=[\w)])\s?(?:<=|≤)\s?(?=[\w(])", " is at most "),
    rule(r"(?<=[\w)])\s?(?:>=|≥)\s?(?=[\w(])", " is at least "),
    rule(r"(?<=[\w)])\s?(?:!=|≠)\s?(?=[\w(])", " does not equal "),
    rule(r"(?<=\d)\s?-\s(?=\d[\d.,]*\s*=)", " minus "),
    rule(r"(?<=[\w)])\s?={1,3}\s?(?=[\w(-])", " equals "),
    rule(r"(?<=[\w)]) ?< ?(?=[\w(-])|(?<!\S)<(?=\d)", " less than "),
    rule(r"(?<=[\w)]) > (?=[\w(-])|(?<!\S)>(?=\d)", " greater than "),
    # Not in front of a number that stands apart: that may be a telephone's.
    rule(r"(?<=[\w)])(?:\s?\+\s|\+)(?=[\w(])", " plus "),
    rule(r"±|\+/-", " plus or minus "),
    rule(r"(?<=\d)\s?[*×]\s?(?=\d)|(?<=[\w)]) × (?=[\w(])", " times "),
    rule(r"(?<=\d)×(?!\s?[\d(])", " times"),
    rule(r"÷", " divided by "),
    rule(r"(?<=[\w)])\^(?=[\w(-])(?![23]\b)", " to the power of "),
    rule(r"√", " square root of "),
    rule(r"∞", " infinity "),
    rule(r"§", " section "),
)
_ANY_SYMBOL = re.compile(r"[+#~≈/&@=<>≤≥≠→±*×÷^√∞§]|No\.|no\.|\.NET")
# What numbers need is said with them ("5%", "20°"); alone it is still a word.
_LEFT = (
    (re.compile(r"‰"), " per mille "),
    (re.compile(r"%"), " percent "),
    (re.compile(r"°"), " degrees "),
    (re.compile(r"€"), " euros "),
    (re.compile(r"£"), " pounds "),
    (re.compile(r"–"), ", "),
)

# Abbreviations -----------------------------------------------------------------------------------

# Those of the training text, said as there.
_TRAINED = {
    "Mr.": "Mister", "Mrs.": "Missus", "Dr.": "Doctor", "St.": "Saint", "Co.": "Company",
    "Jr.": "Junior", "etc.": "et cetera", "Esq.": "Esquire", "Col.": "Colonel",
    "Capt.": "Captain", "Gen.": "General", "Lt.": "Lieutenant", "Sgt.": "Sergeant",
    "Rev.": "Reverend", "Hon.": "Honorable", "vs.": "versus", "e.g.": "for example",
    "i.e.": "that is",
}  # fmt: skip
_MORE = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Dr": "Doctor",
    "Ms.": "Miz", "Prof.": "Professor", "Sr.": "Senior", "Gov.": "Governor", "Sen.": "Senator",
    "Rep.": "Representative", "Pres.": "President", "Inc.": "Incorporated", "Ltd.": "Limited",
    "Corp.": "Corporation", "Dept.": "Department", "dept.": "department", "Ave.": "Avenue",
    "Blvd.": "Boulevard", "Rd.": "Road", "Hwy.": "Highway", "Mt.": "Mount", "Ft.": "Fort",
    "approx.": "approximately", "Approx.": "Approximately", "est.": "established",
    "a.k.a.": "also known as", "aka": "also known as", "cf.": "compare", "viz.": "namely",
    "Ph.D.": "P H D", "PhD": "P H D", "vs": "versus", "Vs.": "Versus", "et al.": "and others",
    "w.r.t.": "with respect to", "E.g.": "For example", "I.e.": "That is", "Etc.": "Et cetera",
    "min.": "minutes", "max.": "maximum", "ext.": "extension", "Fig.": "Figure", "fig.": "figure",
    "vol.": "volume", "Vol.": "Volume", "pp.": "pages", "Sec.": "Section",
    "Sat.": "Saturday", "Jan.": "January",
    "Feb.": "February", "Aug.": "August", "Sept.": "September", "Oct.": "October",
    "Nov.": "November", "Dec.": "December", "OK": "okay", "Ok": "Okay", "ok": "okay",
    "JSON": "Jason", "JPEG": "jay peg", "YAML": "yammel",
}  # fmt: skip
_SHORT_FORMS = _TRAINED | _MORE
_SHORT = re.compile(
    r"(?<![A-Za-z.'-])(?:"
    + "|".join(sorted(map(re.escape, _SHORT_FORMS), key=len, reverse=True))
    + r")(?=\s|$|[^\w\s.'-]|\.(?:\s|$))"
)
_STREET = re.compile(r"(?<=[a-z] )St\.(?=\s+[a-z]|\s*$|\s*[,;!?)])|(?<=[a-z] )St\.?(?=,)")
_ENDS_SENTENCE = re.compile(r"\s+(?:The|A|An|He|She|It|They|We|I|You|This|That|But|And|So|In|If)\b")


def _short_form(found: Match) -> str:
    said = _SHORT_FORMS[found[0]]
    if found[0] == "OK" and begins_sentence(found):
        return "Okay"
    if found[0].endswith(".") and found[0][0].islower():
        stops = _ENDS_SENTENCE.match(found.string, found.end())
        return said + "." if stops else said
    return said


# The last step, as the training text went through it ---------------------------------------------

_BRACKETS = re.compile(r"[\"()\[\]{}<>*_=+/\\|#@^~]")
_SPACE = re.compile(r"\s+")
_TIDY: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), said)
    for pattern, said in (
        (r"\.\.+", ","),
        (r"\s+", " "),
        (r"\s+([,.!?])", r"\1"),
        (r",+", ","),
        (r",([.!?])", r"\1"),
        (r"(^|\s)'(?!\w{1,4}\b)", r"\1"),
        (r"(?<=[,.!?\s])'(?=\s|$)", ""),
        # The rest is not the training text's: runs that it never has.
        (r"[.!?]*\?[.!?]*", "?"),
        (r"[.!]*![.!]*", "!"),
        (r"([?!]),+", r"\1"),
        (r"(?:(?<=\s)|^)[-',.]*-[-',.]*(?=\s|$)", "-"),
        (r"'{2,}", "'"),
        (r"(?<=\w)\s+'s\b", "'s"),
        (r"-{2,}", ", "),
    )
)
_EDGES = " ,'-"
_DIGITS = re.compile(r"[0-9]+")


def _tidy(text: str) -> str:
    return rewritten(text, _TIDY).strip(_EDGES).lstrip(" ,.!?'-")


def finish(text: str) -> str:
    """As every training sentence: a capital first, a full stop last unless it ends otherwise."""
    text = text.strip(_EDGES).lstrip(" ,.!?'-")
    if not text or not any(c.isalpha() for c in text):
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


def spoken(text: str) -> str:
    """Plain text without markup to a sentence in the voice's alphabet, "" if nothing is left."""
    said = _once(text)
    for _ in range(3):
        # What was joined by dropping a character may be a short form itself; mostly nothing is.
        before, said = said, _once(said)
        if said == before:
            break
    return said


def as_written(text: str) -> str:
    """As :func:`spoken`, but nothing is said otherwise than it is written: no numbers, signs and
    short forms as words. What the voice has no letters for is left out, but digits are said one by
    one."""
    text = _DIGITS.sub(lambda found: f" {one_by_one(found[0])} ", _typed(text))
    return _lettered(text)


def _typed(text: str) -> str:
    """In ASCII as far as can be."""
    return _fold(_QUOTED.sub(r"\1", text)).replace("--", ", ").replace("''", '"')


def _once(text: str) -> str:
    text = written_out(_addresses(_typed(text)))
    if _ANY_SYMBOL.search(text):
        text = rewritten(text, _SYMBOLS)
    text = _STREET.sub("Street", text)
    if any(c.isdigit() for c in text):
        text = spell_numbers(text)
    text = _SHORT.sub(_short_form, rewritten(text, _LEFT))
    return _lettered(say_capitals(text))


def _lettered(text: str) -> str:
    """In the voice's alphabet."""
    text = _BRACKETS.sub(" ", text).replace(";", ",").replace(":", ",")
    text = OUTSIDE.sub(" ", text)
    for _ in range(3):
        before, text = text, _tidy(text)
        if text == before:
            break
    return finish(text)
