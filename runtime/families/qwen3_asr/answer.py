"""`Answer`: the text of an answer while its tokens arrive."""

import re
from dataclasses import dataclass

from voxport.bundle.constants.qwen3_asr import CODES
from voxport.runtime.families.qwen3_asr.streaming import REPLACEMENT
from voxport.runtime.families.qwen3_asr.text import (
    CHARACTER_RUN,
    LEAST_REST,
    LONG_RUN,
    LONGEST_UNIT,
    TAG,
    UNIT_RUN,
    parse_answer,
    without_repetitions,
)
from voxport.runtime.speech_to_text import TranscriptDelta

CHARACTERS = re.compile(rf"(.)\1{{{UNIT_RUN - 1}}}", re.DOTALL)
UNSETTLED = 1000  # characters of an answer that are read again with each token
NO_SPACES = ("zh", "yue", "ja", "th")  # languages that are written without spaces


@dataclass(frozen=True)
class Request:
    """`language` is a name in `Qwen3ASRConstants.languages`; empty if the model finds it. `longest_s` is how
    much sound is read at once, at most.
    """

    language: str = ""
    context: str = ""
    longest_s: float = 1200.0  # as in the official package


class Answer:
    """One answer after another, as text that never changes once it was given out.

    The official package puts nothing between the texts of two answers. Here there is a space, in languages
    that are written with spaces.
    """

    def __init__(self, language: str = ""):
        """`language` is the forced one."""
        self._forced, self._has_before = language, False
        self._begin()

    def _begin(self) -> None:
        self._given, self._settled = "", 0  # text since the end of the settled characters of the answer
        self._language: str | None = None  # of an answer with settled characters

    def more(self, raw: str, is_final: bool = False) -> list[TranscriptDelta]:
        """What has become sure of an answer. `raw` is all of it so far, without a forced language."""
        if not (is_final or self._forced or TAG in raw):
            return []
        rest = raw[self._settled :]
        name, text = self._parsed(rest)
        sure = text if is_final else text[: _sure_length(text)]
        found = sure[len(self._given) :] if sure.startswith(self._given) else ""
        is_first = not (self._given or self._settled)
        code = CODES.get(name, name)
        space = " " if found and is_first and self._has_before and code not in NO_SPACES else ""
        self._given += found
        if is_final:
            self._has_before = self._has_before or bool(self._given or self._settled)
            self._begin()
        elif len(rest) > UNSETTLED:
            self._settle(rest, name, text)
        return [TranscriptDelta(space + found, [], code)] if found else []

    def _parsed(self, rest: str) -> tuple[str, str]:
        """Language and text of an answer from its settled characters on."""
        if self._language is None:
            return parse_answer(rest, self._forced)
        return self._language, without_repetitions(rest.strip())

    def _settle(self, rest: str, name: str, text: str) -> None:
        """Settles about half of the rest, where no repetition goes on. So all text is read in time that grows
        with its length, not with its square.
        """
        start = max(len(rest) // 2, rest.find(TAG) + len(TAG))  # behind the language
        for place in range(start, len(rest) - LEAST_REST):
            near = rest[place - LONGEST_UNIT : place] + rest[place + 1 : place + LONGEST_UNIT + 1]
            wide = rest[place - 2 * CHARACTER_RUN - 1 : place + 2 * CHARACTER_RUN + 1]
            # a repetition of units across this place would have its character once more near by
            if rest[place].isspace() or rest[place] in near or LONG_RUN.search(wide):
                continue
            after = without_repetitions(rest[place:].strip())
            if (before := len(text) - len(after)) <= len(self._given):
                self._given, self._language = self._given[before:], name
                self._settled += place
            return


def _sure_length(text: str) -> int:
    """Characters that later ones leave as they are: of a repetition that may go on, the first unit."""
    end = len(text.rstrip().rstrip(REPLACEMENT))
    ends = [end]
    for size in range(1, min(LONGEST_UNIT, end - 1) + 1):
        start = end
        while start > size and text[start - 1] == text[start - 1 - size]:
            start -= 1
        ends.append(start if start > size else 0)  # blanks in front of the text may begin the unit
    if unit := CHARACTERS.search(text, max(0, len(text) - LEAST_REST)):  # long enough, if more text follows
        ends.append(unit.start() + 1)
    return min(ends)
