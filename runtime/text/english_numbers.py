"""Dates, times, ranges, telephone numbers and all other digits as words of English."""

import unicodedata
from collections.abc import Callable

import regex
from num2words import num2words

Words = Callable[[regex.Match[str]], str]
MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
NAME = rf"(?P<month>{'|'.join(f'{name[:3]}(?:{name[3:]})?' for name in MONTHS)}|Sept)\b(?:\.(?=,? \d))?"
MONTH, DAY = r"(?P<month>0?[1-9]|1[0-2])", r"(?P<day>0?[1-9]|[12]\d|3[01])"
YEAR = r"(?P<year>1[1-9]\d\d|20\d\d)"
START, END = r"(?<![\w/.,:-])", r"(?![\w/]|[.,:-]\d)"
DATE_WORD = r"(?<=\b(?:on|by|since|until|before|after|due|dated)\s)"
YEAR_WORD = r"(?<=\b(?:in|since|until|before|after|from|of|by|year|to)\s)"
UNIT = r"\s?(?:[ckm]?[glm]\b|(?:degree|dollar|euro|pound|percent|people|time|mile|hour|day)s?\b)"
HOUR, SIXTY = r"(?P<hour>[01]?\d|2[0-4])", r"[0-5]\d"
AM_PM = r"\s?[ap]\.?m\b"
HALF_DAY = rf"(?=(?P<half>{AM_PM}|\s?o'clock)?)"
CLOCK = rf"{HOUR}(?::|\.(?=\d\d{AM_PM}))(?P<minute>{SIXTY})(?::(?P<second>{SIXTY}))?"
PHONE = (
    r"\+\d[\d ().-]{5,20}\d|\(\d{2,5}\) ?\d[\d -]{3,15}\d|(?<!\d )0\d{1,4}(?:[ /-]\d{2,8})+"
    r"|\d{3}[. -]\d{3}[. -]\d{4}|\d{3}-\d{4}|1-\d{3}(?=-[A-Z])|\d+(?:-\d+){2,}"
)
GROUPED = r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})* 000|(?<!\d{3})(?: \d{3}){2,})(?![ ,]?\d)"
WHOLE, DECIMALS = rf"(?<!\d)(?P<whole>{GROUPED}|\d+)", r"(?P<decimals>\d+)"
CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees"}
SPARE_BLANKS = regex.compile(r"(?<=\s)\s+|\s+(?=[,.;:!?](?:\s|$)|$)")


def spell_numbers(text: str) -> str:
    """`text` with every digit as a word: 3rd, 2.5, 40 %, 3:45, 12/30, 1990s, 5-7, -5°C, v2.0.1."""
    text = regex.sub(r"[\u00ba\u02da](?=\s?[CF]\b)", "\u00b0", text)
    apart = regex.sub(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])", " ", text)
    spelled = unicodedata.normalize("NFKC", apart).replace("\u2044", "/")
    for pattern, words in RULES:
        spelled = pattern.sub(lambda found: _apart(found, words), spelled)
    return str(SPARE_BLANKS.sub("", spelled))


def _apart(found: regex.Match[str], words: str | Words) -> str:
    """Words with a blank where they touch a letter or a digit."""
    start, end = found.span()
    before, behind = found.string[max(start - 1, 0) : start], found.string[end : end + 1]
    spelled = words if isinstance(words, str) else words(found)
    return f"{' ' * (before.isalnum() or before == ',')}{spelled}{' ' * behind.isalnum()}"


def _spelled(digits: str, form: str = "cardinal") -> str:
    if len(digits) > 15 or (len(digits) > 1 and int(digits[0]) == 0 and form == "cardinal"):
        return " ".join(num2words(int(digit)) for digit in digits)
    return str(num2words(int(digits), to=form)).replace("-", " ").replace(",", "")


def _date(found: regex.Match[str]) -> str:
    parts = found.groupdict()
    month, day, year = parts["month"], parts.get("day"), parts.get("year")
    name = MONTHS[int(month) - 1] if month.isdigit() else next(n for n in MONTHS if n[:3] == month[:3])
    words = [name, _spelled(day, "ordinal")] if day else [name]
    if " of " in found[0]:
        words = [words[1], "of", name]
    return " ".join([*words, _spelled(year, "year")] if year else words)


def _year(found: regex.Match[str]) -> str:
    return _spelled(found["year"], "year")


def _time(found: regex.Match[str]) -> str:
    words = _spelled(str(int(found["hour"])))
    if found["minute"] != "00":
        words += f" {_spelled(found['minute'])}".replace("zero", "oh")
    elif not found["half"]:
        words += " o'clock"
    point = f" point {' '.join(map(_spelled, found['decimals']))}" if found["decimals"] else ""
    seconds = found["second"] and f" and {_spelled(str(int(found['second'])))}{point} seconds"
    return words + (seconds or point)


def _fraction(found: regex.Match[str]) -> str:
    whole, top, bottom = found.groups()
    if int(top) >= int(bottom):
        return str(found[0])
    part = {"2": "half", "4": "quarter"}.get(bottom, _spelled(bottom, "ordinal"))
    words = f"{_spelled(top)} {part}{'s' * (int(top) > 1)}"
    return f"{_spelled(whole)} and {words}" if whole else words


def _phone(found: regex.Match[str]) -> str:
    groups = (" ".join(map(_spelled, group)) for group in regex.findall(r"\d+", found[0]))
    return f"{'plus ' * found[0].startswith('+')}{', '.join(groups)}"


def _number(found: regex.Match[str]) -> str:
    words = _spelled(regex.sub(r"\D", "", found["whole"])) if found["whole"] else ""
    decimals = found["decimals"]
    return f"{words} point {' '.join(map(_spelled, decimals))}".strip() if decimals else words


ROWS: tuple[tuple[str, str | Words], ...] = (
    (r"(?<=\b\d{4}-\d\d-\d\d)T(?=\d\d:\d\d)", " at "),
    (rf"{START}{YEAR}([-/]){MONTH}\2{DAY}{END}", _date),
    (rf"{START}(?:{MONTH}[-/]{DAY}[-/]|{DAY}[-/.]{MONTH}[-/.]){YEAR}{END}", _date),
    (rf"{START}(?:{MONTH}/{DAY}|{DAY}/{MONTH})/(?P<year>\d\d){END}", _date),
    (rf"\b{NAME} {DAY}(?:st|nd|rd|th)?\b(?![:/.-]?\d|-)(?:,? {YEAR}\b)?", _date),
    (rf"{START}{DAY}(?:st|nd|rd|th)? (?:of )?{NAME}(?:,? {YEAR}\b)?", _date),
    (rf"\b{NAME},? {YEAR}\b", _date),
    (rf"{DATE_WORD}{MONTH}/{DAY}{END}", _date),
    (rf"{START}(?:(\d+(?= )|\d\d?)[ -])?(\d\d?)/([2-9]|10|12|16|32|64|100){END}", _fraction),
    (rf"{START}{MONTH}/{DAY}{END}", _date),
    (rf"{START}(?:{PHONE})(?!\w|[.,]\d)", _phone),
    (r"\s?°\s?C\b", " degrees Celsius"),
    (r"\s?°\s?F\b", " degrees Fahrenheit"),
    (r"\s?°", " degrees"),
    (r"\s?%", " percent"),
    (r"(?<!\w)#(?=\d)", "number "),
    (r"(?<=\d)\s?[*\u00d7]\s?(?=\d)", " times "),
    (r"(?<=\d)\s?\+\s?(?=\d)", " plus "),
    (r"(?<!\w)\+(?=\d)", "plus "),
    (r"\s?=\s?(?=\d)", " equals "),
    (r"(?<=(?<!:\d)\d)(?: - |\s?\u2212\s?)(?=\d)", " minus "),
    (r"(?<=\d(?:\s?[ap]\.?m\.?)?)(?:[-~]|(?<=m\.?|:\d\d) - |\s?[\u2013\u301c]\s?)(?=[$€£]?\.?\d)", " to "),
    (r"(?<!\w)[-\u2212](?=[$€£]?\.?\d)", "minus "),
    (rf"(?<![\d:.,]){CLOCK}(?:\.{DECIMALS})?(?![\d:]|\.\d){HALF_DAY}", _time),
    (r"(?<=\d):(?=\d)", " to "),
    (r"(?<=\d)/(?=\d)", " "),
    (r"(?<=\d)'(?=\d)", " foot "),
    (r"(?<=\d)\"", " inches"),
    (r"(?<![\w.,])'?(?P<year>\d{1,3}0)'?s\b", lambda found: f"{_year(found)}s".replace("ys", "ies")),
    (r"([$€£¥₹]) ?(\d(?:[\d.,]*\d)?(?:[kmb]n?\b)?)", lambda found: f"{found[2]} {CURRENCIES[found[1]]}"),
    (rf"(?<![\w.,])(?:{YEAR_WORD}{YEAR}|(?P<year>(?:19|20)\d\d))(?!\w|[.,:]\d|{UNIT})", _year),
    (rf"{WHOLE}(?:st|nd|rd|th)\b", lambda found: _spelled(found["whole"].replace(",", ""), "ordinal")),
    (r"(?<![\d.])\d+(?:\.\d+){2,}", lambda found: " point ".join(map(_spelled, found[0].split(".")))),
    (rf"(?<!\d|\d[,.])(?P<whole>0|\d+(?=,(?!\d{{3}}(?!\d)))),{DECIMALS}(?![,.]?\d)", _number),
    (rf"{WHOLE}(?:\.{DECIMALS})?|(?<!\w)\.{DECIMALS}", _number),
)
RULES = tuple((regex.compile(pattern), words) for pattern, words in ROWS)
