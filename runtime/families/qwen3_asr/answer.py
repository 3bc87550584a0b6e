"""`Answer`: the text of an answer while its tokens arrive."""

import re
from dataclasses import dataclass

from voxport.bundle.constants.qwen3_asr import CODES
from voxport.runtime.families.qwen3_asr.streaming import REPLACEMENT
from voxport.runtime.families.qwen3_asr.text import LEAST_REST, LONGEST_UNIT, TAG, UNIT_RUN, parse_answer
from voxport.runtime.speech_to_text import TranscriptDelta

CHARACTERS = re.compile(rf"(.)\1{{{UNIT_RUN - 1}}}", re.DOTALL)
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
        self._forced, self._given, self._has_before = language, "", False

    def more(self, raw: str, is_final: bool = False) -> list[TranscriptDelta]:
        """What has become sure of an answer. `raw` is all of it so far, without a forced language."""
        if not (is_final or self._forced or TAG in raw):
            return []
        name, text = parse_answer(raw, self._forced)
        if not is_final:
            text = text[: _sure_length(text)]
        found = text[len(self._given) :] if text.startswith(self._given) else ""
        code = CODES.get(name, name)
        space = " " if found and not self._given and self._has_before and code not in NO_SPACES else ""
        self._given += found
        if is_final:
            self._has_before, self._given = self._has_before or bool(self._given), ""
        return [TranscriptDelta(space + found, [], code)] if found else []


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
