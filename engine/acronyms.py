"""Words in capitals: acronyms spelled or said, emphasis in small letters, Roman numerals counted.

Pure; any thread. Part of the English front end.
"""

from __future__ import annotations

import re

from .numerals import spell_numbers
from .rewriting import Match

_AS_WORDS = frozenset(
    "NASA NATO AIDS UNESCO UNICEF RAM ROM PIN SIM LASER COVID SCUBA RADAR OPEC FIFA NAFTA SWAT"
    " YOLO CAPTCHA NVIDIA OSHA POTUS SCOTUS NORAD SONAR DARPA MIDI GIF WASP AWOL ACID CRUD BIOS"
    " LAN WAN VIN ZIP CAD COBOL FORTRAN BASIC PERL LISP JAVA LINUX UNIX DOOM IKEA NASDAQ EBITDA"
    " LIDAR TESLA FOMO TED DOS SPAM NAVY ARMY".split()
)
_SPELLED = frozenset(
    "FBI CIA NSA API APIS GPU CPU TPU USA UK EU UN US AI TV PC ID HR PR VR AR ML UI UX QA CV DJ"
    " CD DVD LA NY NYC DC BC AD PM CEO CFO CTO COO USB URL UFO GPS DNA RNA SMS FAQ ATM ETA IOU"
    " IQ EQ NBA NFL NHL MLB FIA NAACP IEEE AARP ICU IRA IRS IRL IIRC IMO OS IOS IP ISO IT ITU"
    " EPA ER EV AC AUX BBC CNN ABC NBC CBS HBO MIT UCLA USC IBM AMD AWS AOL EPFL ETH EEG EKG MRI"
    " RIP TBA TBD ASAP DIY VIP LED LCD LLM LLMS NLP TTS ASR STT GUI CLI IDE SDK ORM SQL XML HTML"
    " HTTP HTTPS CSS SUV AKA IPO ROI KPI SEO EOD OOO IDS GPUS CPUS ESPN UEFA UAE USSR IPA ALU"
    " APU NPU AM FM".split()
)
_COMMON = frozenset(
    "A I AN AS AT BE BY DO GO HE HI IF IN IS IT ME MY NO OF OH ON OR SO TO UP US WE YO AH HA"
    " ALL AND ANY ARE ASK BAD BAR BED BIG BIT BOX BOY BUT BUY CAN CAR CAT CUT DAD DAY DID DIE"
    " DOG EAT END EYE FAR FEW FOR FUN GET GOD GOT GUY HAD HAS HER HEY HIM HIS HIT HOT HOW ITS"
    " JOB KEY KID LAW LET LIE LOT LOW MAD MAN MAP MAY MEN MOM NEW NOT NOW ODD OFF OLD ONE OUR"
    " OUT OWN PAY PUT RED RUN SAD SAT SAW SAY SEE SET SEX SHE SIT SIX SON SUN TAX TEA TEN THE"
    " TOO TOP TRY TWO USE WAR WAS WAY WHO WHY WIN WON YES YET YOU ZOO ABLE ALSO ALWAYS AWAY BACK"
    " BEEN BEST BOTH CALL CANT COME COOL DONE DONT DOWN EACH EASY EVEN EVER EVERY FACT FAST FEEL"
    " FIND FIRE FREE FROM FULL GAME GIVE GOOD HALF HARD HATE HAVE HEAR HELP HERE HIGH HOLD HOME"
    " HOPE JUST KEEP KNOW LAST LATE LESS LIFE LIKE LINE LIVE LONG LOOK LOST LOVE MADE MAKE MANY"
    " MORE MOST MUCH MUST NEED NEVER NEXT NICE NONE NOTE ONCE ONLY OPEN OVER PART PLAY READ REAL"
    " SAID SALE SAME SHOW SOME SOON STAY STOP SUCH SURE TAKE TALK TELL THAN THAT THEM THEN THEY"
    " THIS TIME TODO TRUE TURN VERY WAIT WANT WEEK WELL WENT WERE WHAT WHEN WILL WITH WORD WORK"
    " YEAR YEP YOUR ZERO WOW LOL ACT ADD AGE AGO AIR ART BAG FIX FLY GAS HAY ICE LEG LOG MIX NET"
    " OIL PEN RAW ROW SKY TIP VAN WET WORLD FIRST THIRD RIGHT NIGHT LIGHT MIGHT WORST START"
    " SMART SHORT NORTH EARTH".split()
)
_CAPITALS = re.compile(r"(?<![A-Za-z.'])([A-Z]{2,})('s|s)?(?![A-Za-z]|\.[A-Za-z])")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z]{2,}(?![a-z]))")
_SAYABLE = re.compile(
    r"^(?:[BCDFGHJKLMNPQRSTVWXYZ]|[BCDFGKPST][LR]|S[CKLMNPTW]|[CST]H|TW|QU)?[AEIOUY]{1,2}"
    r"(?:[BCDFGHJKLMNPRSTVWXYZ]|LL|SS|TT|[LNR][DKTNS]|ST|CK|NG|TH|SH|CH)"
    r"(?:[AEIOUY]{1,2}[BCDFGHJKLMNPRSTVWXYZ]{0,2})*$"
)
_TECH_NEXT = re.compile(
    r"\s(?:department|support|team|manager|staff|systems?|professionals?|company|industry|services?"
    r"|guy|admin|infrastructure|security|consultants?|jobs?)\b"
)
_ROMAN = re.compile(r"(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})")
_ROMAN_DIGITS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_COUNTED = re.compile(
    r"\b((?i:World War|Chapter|Part|Act|Scene|Volume|Book|Phase|Section|Type|Title|Article|Episode"
    r"|Level|Class|Stage|Rocky|Super Bowl|Final Fantasy|Mark) )([IVXLC]{1,7})(?![\w'-])"
)
_REIGNED = re.compile(
    r"\b((?:Henry|Louis|Charles|Elizabeth|George|Edward|James|William|Richard|Philip|Francis"
    r"|Napoleon|Frederick|Peter|Catherine|Alexander|Nicholas|Ivan|John Paul|Benedict|Pius|Leo"
    r"|Ramses|Gregory|Clement|Innocent|Urban) )([VX]|[IVX]{2,5})(?![\w-]|'(?!s\b))"
)

_COUNTS_ALONE = re.compile(r"(?<![\w'.-])(I{2,3}|VI{2,3}|XI{2,3}|XIV|XVI{1,3})(?![\w'.-])")
_CENTURY = re.compile(r"(?<![\w'-])([XVI]{1,5})(?:th|st|nd|rd)?(?= [Cc]entur(?:y|ies)\b)")


def begins_sentence(found: Match) -> bool:
    """Whether the match stands at the start of the text or behind a sentence's end."""
    before = found.string[max(0, found.start() - 8) : found.start()].rstrip()
    return not before or before[-1] in ".!?"


def _count(roman: str, form: str = "{}") -> str:
    """The words for a Roman numeral; what is none stays as it is."""
    if not _ROMAN.fullmatch(roman):
        return roman
    values = [_ROMAN_DIGITS[c] for c in roman]
    after = [*values[1:], 0]
    count = sum(-v if v < a else v for v, a in zip(values, after, strict=True))
    return spell_numbers(form.format(count)).strip()


def say_capitals(text: str) -> str:
    """Acronyms spelled or said; shouted words in small letters."""
    text = _COUNTED.sub(lambda m: m[1] + _count(m[2]), text)
    text = _REIGNED.sub(lambda m: m[1] + _count(m[2], "the {}th"), text)
    text = _CENTURY.sub(lambda m: _count(m[1], "{}th"), text)
    text = _COUNTS_ALONE.sub(lambda m: _count(m[1]), text)
    text = _HUMP.sub(" ", text)
    runs = _CAPITALS.findall(text)
    if not runs:
        return text
    shouted = len(runs) > 1 and not re.search(r"[a-z]{2}", _CAPITALS.sub("", text))

    def say(found: Match) -> str:
        word, ending = found[1], found[2] or ""
        if _said_as_word(word, shouted, found):
            said = word.lower()
            if word in _AS_WORDS or begins_sentence(found):
                said = word.capitalize()
            return said + ending
        return " ".join(word) + ("'s" if ending else "")

    return _CAPITALS.sub(say, text)


def _said_as_word(word: str, shouted: bool, found: Match) -> bool:
    if word in _AS_WORDS:
        return True
    if word == "IT":
        return _TECH_NEXT.match(found.string, found.end()) is None
    if word in _SPELLED and not (shouted and word in _COMMON):
        return False
    if word in _COMMON:
        return True
    if not re.search(r"[AEIOUY]", word) or re.search(r"[^AEIOUY]{5}", word):
        return False
    return shouted or len(word) >= 5 or (len(word) == 4 and _SAYABLE.match(word) is not None)
