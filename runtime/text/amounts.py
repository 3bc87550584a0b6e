"""Amounts of money and large numbers as words, in the languages for which num2words has both."""

import re
from collections.abc import Callable
from decimal import Decimal
from functools import cache

import regex
from num2words import CONVERTER_CLASSES, num2words

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
        words = (number, MAGNITUDES.get(magnitude.lower(), magnitude))
        return " ".join(filter(None, (*words, CONVERTER_CLASSES[language].CURRENCY_FORMS[currency][0][1])))
    value = Decimal(f"{_whole(found)}.{decimals or 0}")
    if value >= NUMBER_LIMIT:
        return found[0]
    parts: str = num2words(value, lang=language, to="currency", currency=currency, separator="|")
    units, hundredths = parts.split("|")
    if value == int(value):
        return _plural(units, language, int(value))
    if value < 1:
        return hundredths.strip()
    words = num2words(value, lang=language, to="currency", currency=currency)
    return _plural(words, language, int(value))


def _plural(words: str, language: str, units: int) -> str:
    """num2words has no plural of the euro in English."""
    return words.replace("euro", "euros", 1) if language == "en" and units != 1 else words


def _big_number(found: re.Match[str], language: str) -> str:
    groups = re.findall("[0-9]+", found[0])
    if len(groups) == 4 and all(int(group) < 256 for group in groups):
        return found[0]  # an address of a network
    number = _whole(found)
    return num2words(number, lang=language) if MIN_BIG_NUMBER <= number < NUMBER_LIMIT else found[0]


def _whole(found: re.Match[str]) -> int:
    """The integer before the decimal mark, at most NUMBER_LIMIT: Python does not convert thousands of
    digits.
    """
    digits = re.sub("[^0-9]", "", found["whole"])
    return int(digits) if len(digits) <= 18 else NUMBER_LIMIT
