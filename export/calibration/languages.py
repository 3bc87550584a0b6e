"""Which language a text has, by the library py3langid."""

import logging
from collections.abc import Collection, Iterable
from functools import cache

from py3langid.langid import MODEL_FILE, LanguageIdentifier

SURE = 0.9  # probability
log = logging.getLogger(__name__)


def language_of(text: str, languages: Collection[str]) -> str:
    """The likeliest of `languages`, which are ISO 639 codes; of those that the library knows, if any."""
    known = frozenset(languages).intersection(_identifier().labels)
    return str(_identifier(known).classify(text)[0]) if known else min(languages)


def warn_of_other_language(texts: Iterable[str], languages: Collection[str]) -> None:
    """Logs a warning if the texts together are surely in none of `languages`."""
    language, probability = _identifier().classify("\n".join(texts))
    if probability > SURE and language not in languages:
        text = "calibration: the texts seem to be in %r; the voices speak %s: give texts in their languages"
        log.warning(text, language, ", ".join(sorted(languages)))


@cache
def _identifier(languages: Collection[str] = ()) -> LanguageIdentifier:
    found = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    if languages:
        found.set_languages(sorted(languages))
    return found
