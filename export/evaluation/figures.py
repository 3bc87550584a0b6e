"""Figures of an evaluation: word error rates with jiwer, where digits are read in English, and tables."""

import json
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import jiwer
import numpy as np
import regex

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.runtime.text.numbers import spell_amounts, spell_numbers

_NO_WORD = regex.compile(r"[^\p{L}\p{M}\p{N}' ]+")
Figures = dict[str, float]
Row = Json
FIGURES = {  # names for people; the values are shares, except for those in `UNITS`
    "wer": "word error rate",
    "cer": "character error rate",
    "wer_full": "word error rate in full precision",
    "wer_difference_error": "standard error of the difference of both",
    "wer_recordings": "word error rate of the recordings",
    "wer_live": "word error rate, live with the default delay",
    "live_equal": "sentences with the same text live",
    "text_equal": "sentences with the text of full precision",
    "not_ended": "sentences that do not end by themselves in time",
    "stopped_early": "sentences that stop early",
    "codes_equal": "codes as in full precision, first codebook",
    "other_codes_equal": "codes as in full precision, other codebooks",
    "log_mel_db": "log-mel distance to full precision",
    "duration_ratio": "duration, over the expected one",
}
UNITS = {"log_mel_db": (1, "dB"), "duration_ratio": (1, "")}  # factor and unit
PERCENT = 100, "%"


@dataclass(frozen=True)
class Evaluation:
    """`rows` has one row per sentence. `figures` have the keys of `FIGURES`. `bytes` is the size of
    the bundle. `engine` is what executed it. `machine` is where it ran, with the version of the engine.
    """

    bundle: str
    family: str
    target: str
    recipe: str
    bytes: int
    recogniser: str
    engine: str
    machine: Json
    figures: Figures
    rows: tuple[Row, ...]

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def summary(found: Evaluation) -> str:
    """Text: a line for each figure."""
    words = sum(len(normalised(row["text"]).split()) for row in found.rows)
    width = max(len(FIGURES[key]) for key in found.figures)
    lines = [f"{found.bundle}: {len(found.rows)} sentences, {words} words, recogniser: {found.recogniser}"]
    lines.append(f"  executed by {found.engine}")
    for key, value in found.figures.items():
        factor, unit = UNITS.get(key, PERCENT)
        lines.append(f"  {FIGURES[key]:<{width}} {value * factor:>8.2f} {unit}".rstrip())
    return "\n".join(lines)


def sweep_table(rows: Sequence[Row]) -> str:
    """Text: a line for each part, with the columns that the rows have."""
    keys = [key for key in FIGURES if key in rows[0]]
    width = max(len(row["part"]) for row in rows)
    header = f"{'part':<{width}} {'weights':>10} " + " ".join(f"{key:>18}" for key in keys)
    lines = [
        f"{row['part']:<{width}} {row['weights']:>10} " + " ".join(_cell(row, key) for key in keys)
        for row in rows
    ]
    legend = [f"  {key}: {FIGURES[key]}" for key in keys]
    return "\n".join([header, *lines, "", *legend])


def _cell(row: Row, key: str) -> str:
    factor, unit = UNITS.get(key, PERCENT)
    return f"{row[key] * factor:>15.2f} {unit:<2}" if key in row else " " * 18


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return float(np.mean(values))


def normalised(text: str) -> str:
    """Lower case, without punctuation, amounts and numbers in words, one space between words."""
    text = unicodedata.normalize("NFKC", text).replace("\u2019", "'")
    text = spell_numbers(spell_amounts(text, "en"))
    letters = _NO_WORD.sub(" ", text.lower())
    return " ".join(word for part in letters.split() if (word := part.strip("'")))


def word_error_rate(expected: Sequence[str], found: Sequence[str]) -> float:
    """Substituted, missing and additional words over the words of `expected`, of all texts together.

    1.0 is 100 %. A text without a word does not count. Raises UsageError if no expected text has a word.
    """
    return float(jiwer.wer(*_spoken(expected, found)))


def character_error_rate(expected: Sequence[str], found: Sequence[str]) -> float:
    """As `word_error_rate`, for characters without spaces: some languages have no words between spaces."""
    spoken, heard = ([text.replace(" ", "") for text in each] for each in _spoken(expected, found))
    return float(jiwer.cer(spoken, heard))


def _spoken(expected: Sequence[str], found: Sequence[str]) -> tuple[list[str], list[str]]:
    """Both texts, normalised, of those that have a word."""
    pairs = [(normalised(a), normalised(b)) for a, b in zip(expected, found, strict=True)]
    spoken = [(a, b) for a, b in pairs if a]
    if not spoken:
        raise UsageError("evaluate: no sentence has a word", field="sentences")
    return [a for a, _ in spoken], [b for _, b in spoken]


def standard_error(expected: Sequence[str], found: Sequence[str], other: Sequence[str]) -> float | None:
    """Standard error of the difference between the word error rates of `found` and `other`.

    The difference is a sum over n texts, divided by the number of words: its error is √n times the standard
    deviation of a text's share. Readings of one text belong together. None if fewer than two texts have
    words.
    """
    differences, words = defaultdict[str, int](int), 0
    for text, a, b in zip(map(normalised, expected), found, other, strict=True):
        if text:
            differences[text] += _word_errors(text, a) - _word_errors(text, b)
            words += len(text.split())
    if len(differences) < 2:
        return None
    return float(np.std(list(differences.values()), ddof=1) * len(differences) ** 0.5 / words)


def _word_errors(text: str, found: str) -> int:
    counted = jiwer.process_words(text, normalised(found))
    return int(counted.substitutions + counted.deletions + counted.insertions)
