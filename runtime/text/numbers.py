"""Numbers as words: amounts of money and large numbers in several languages, and all digits of English."""

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from functools import cache

import regex

# language: the characters between groups of three digits, and the decimal mark
SEPARATORS = {
    "de": (".", ","),
    "en": (",", "."),
    "es": (".\u00a0\u202f ", ","),
    "fr": ("\u00a0\u202f ", ","),
    "it": (".", ","),
    "nl": (".", ","),
    "pt": (".\u00a0\u202f ", ","),
}
CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP"}
# language: the word for "/" behind an amount, as in $2/month
PER_WORDS = {"de": "pro", "en": "per", "es": "por", "fr": "par", "it": "al", "nl": "per", "pt": "por"}
MAGNITUDES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion"}  # abbreviations, in English
MAGNITUDE = r"(?:[ \u00a0](?:thousand|milli|milj|milh|millones|bill|bilh|mrd|mio)[^\W\d]*|(?:[kmb]|bn)\b)"
# groups with other marks than the comma: 1.234,56 and 1 234,56 and 1'234, and blanks beside a symbol
OTHER_GROUPS = regex.compile(
    r"(?<![\w.,'])([1-9][0-9]{0,2}(?:(?:[. ][0-9]{3})+(?=,[0-9]{1,2}(?!\w|[.,][0-9]))"
    r"|(?:['\u00a0\u2009\u202f][0-9]{3})+|(?<=[$€£] ?[0-9]+)(?: [0-9]{3})+|(?: [0-9]{3})+(?= ?[$€£])))"
    r"(?:,([0-9]{1,2}))?(?![0-9]|[,' ][0-9])"
)
MIN_BIG_NUMBER, NUMBER_LIMIT = 10**6, 10**18


def english_groups(text: str) -> str:
    """`text` with the marks of English in numbers that have the marks of other languages."""
    decimals: Callable[[regex.Match[str]], str] = lambda found: f".{found[2]}" if found[2] else ""
    return str(OTHER_GROUPS.sub(lambda found: regex.sub("[^0-9]", ",", found[1]) + decimals(found), text))


def spell_amounts(text: str, language: str) -> str:
    """`text` with amounts like $3.50 and numbers like 1,234,567 as words. Other numbers stay digits.

    Nothing changes in a language without a row in `SEPARATORS`.
    """
    if language not in SEPARATORS:
        return text
    before, behind, number = _patterns(language)
    per = f" {PER_WORDS[language]} "
    spell: Callable[[re.Match[str]], str] = lambda found: _amount(found, language) + per * bool(found["per"])
    return number.sub(lambda found: _big_number(found, language), behind.sub(spell, before.sub(spell, text)))


@cache
def _patterns(language: str) -> tuple[re.Pattern[str], ...]:
    """Patterns of an amount behind its symbol, an amount before its symbol, and a number in groups."""
    group, mark = (re.escape(separator) for separator in SEPARATORS[language])
    groups = rf"[0-9]{{1,3}}(?:[{group}][0-9]{{3}})+"
    # not a blank: a telephone number has blanks between its digits as well
    tight = re.escape(SEPARATORS[language][0].replace(" ", ""))
    tight_groups = rf"(?!0)[0-9]{{1,3}}(?:[{tight}][0-9]{{3}})+"
    number = (
        rf"(?P<whole>{groups}|[0-9]+)(?:{mark}(?:(?P<decimals>[0-9]+)|[-\u2013](?![0-9])))?"
        r"(?![0-9]|[.,][0-9])"
    )
    symbol = f"(?:US(?=[$]))?(?P<symbol>[{''.join(CURRENCIES)}])"
    per = r"(?P<per>\s?/\s?(?=[^\W\d]))?"
    magnitude = f"(?P<magnitude>{MAGNITUDE})?"
    start, end = r"(?<![\w.,\u2212])(?<!(?<!\w)-)", r"(?!\w|[.,][0-9])"
    patterns = (
        f"{start}{symbol} ?{number}{magnitude}(?!\\w|[-\u2013][0-9]){per}",
        f"{start}{number}{magnitude}[ \u00a0\u202f]?{symbol}{end}{per}",
        f"{start}(?<![0-9][ \u00a0\u202f])(?P<whole>{tight_groups}){end}",
    )
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)


def _amount(found: re.Match[str], language: str) -> str:
    currency, decimals = CURRENCIES[found["symbol"]], found["decimals"] or ""
    if found["magnitude"] or len(decimals) > 2:
        magnitude = (found["magnitude"] or "").strip()
        number = f"{found['whole']}{SEPARATORS[language][1] * bool(decimals)}{decimals}"
        named = (number, MAGNITUDES.get(magnitude.lower(), magnitude), _unit(currency, language))
        return " ".join(filter(None, named))
    value = Decimal(f"{_whole(found)}.{decimals or 0}")
    if value >= NUMBER_LIMIT:
        return found[0]
    parts = _in_words(value, lang=language, to="currency", currency=currency, separator="|")
    units, hundredths = parts.split("|")
    if value == int(value):
        return _plural(units, language, int(value))
    if value < 1:
        return hundredths.strip()
    words = _in_words(value, lang=language, to="currency", currency=currency)
    return _plural(words, language, int(value))


def _in_words(number: int | Decimal, **options: str) -> str:
    """As num2words, whose sixty languages are imported only if a text has a number."""
    from num2words import num2words

    return str(num2words(number, **options))


def _unit(currency: str, language: str) -> str:
    """`EUR` -> `euro`"""
    from num2words import CONVERTER_CLASSES

    return str(CONVERTER_CLASSES[language].CURRENCY_FORMS[currency][0][1])


def _plural(words: str, language: str, units: int) -> str:
    """num2words has no plural of the euro in English."""
    return words.replace("euro", "euros", 1) if language == "en" and units != 1 else words


def _big_number(found: re.Match[str], language: str) -> str:
    groups = re.findall("[0-9]+", found[0])
    if len(groups) == 4 and all(int(group) < 256 for group in groups):
        return found[0]  # an address of a network
    number = _whole(found)
    return _in_words(number, lang=language) if MIN_BIG_NUMBER <= number < NUMBER_LIMIT else found[0]


def _whole(found: re.Match[str]) -> int:
    """The integer before the decimal mark, at most NUMBER_LIMIT: Python does not convert thousands of
    digits.
    """
    digits = re.sub("[^0-9]", "", found["whole"])
    return int(digits) if len(digits) <= 18 else NUMBER_LIMIT


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
CURRENCY_WORDS = {"$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees"}
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
        return " ".join(_in_words(int(digit)) for digit in digits)
    return _in_words(int(digits), to=form).replace("-", " ").replace(",", "")


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
    (r"([$€£¥₹]) ?(\d(?:[\d.,]*\d)?(?:[kmb]n?\b)?)", lambda found: f"{found[2]} {CURRENCY_WORDS[found[1]]}"),
    (rf"(?<![\w.,])(?:{YEAR_WORD}{YEAR}|(?P<year>(?:19|20)\d\d))(?!\w|[.,:]\d|{UNIT})", _year),
    (rf"{WHOLE}(?:st|nd|rd|th)\b", lambda found: _spelled(found["whole"].replace(",", ""), "ordinal")),
    (r"(?<![\d.])\d+(?:\.\d+){2,}", lambda found: " point ".join(map(_spelled, found[0].split(".")))),
    (rf"(?<!\d|\d[,.])(?P<whole>0|\d+(?=,(?!\d{{3}}(?!\d)))),{DECIMALS}(?![,.]?\d)", _number),
    (rf"{WHOLE}(?:\.{DECIMALS})?|(?<!\w)\.{DECIMALS}", _number),
)
RULES = tuple((regex.compile(pattern), words) for pattern, words in ROWS)
