"""`SpeechRequest`: a text to speak, with its options. Commands read it before NumPy is imported."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from typing import Literal, TypedDict, get_args
from unicodedata import category

from voxport.bundle.errors import UsageError

SAMPLING = {  # settings of a model that draws codes; `sub_*` are of the codes of a frame behind the first
    "temperature": "divides the logits; 0 takes the largest one",
    "top_k": "number of codes that may be drawn; 0 is all",
    "top_p": "draws among the most probable codes that make up this share",
    "repetition_penalty": "makes codes that were drawn before less probable; 1 has no effect",
    "sub_temperature": "as temperature, for the other codes of a frame",
    "sub_top_k": "as top_k, for the other codes of a frame",
    "sub_top_p": "as top_p, for the other codes of a frame",
}


def is_number(value: object) -> bool:
    """Whether it is a real number; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_sampling(sampling: Mapping[str, float] | None) -> None:
    """Raises UsageError if it is no mapping of names in `SAMPLING` to numbers."""
    if sampling is not None and not isinstance(sampling, Mapping):
        raise UsageError(f"sampling {sampling!r}: expected a mapping of names to numbers", field="sampling")
    for name, number in (sampling or {}).items():
        if name not in SAMPLING or not is_number(number):
            raise UsageError(
                f"sampling {name}={number!r}: expected numbers of {', '.join(SAMPLING)}", field="sampling"
            )


DEFAULT_SLOTS = 4  # texts that are spoken at a time
DEFAULT_BUDGET = 3.0
SPARE_FRAMES = 40  # 3.2 s: for pauses
LEAST_SPARE_FRAMES = 10  # for a text of a few letters: 0.8 s
WORD_FRAMES = 4  # for a character that may be spoken as a word
WORDS = ("N", "S", "Lu")  # Unicode categories of such characters: numbers, symbols, capital letters
TextLayout = Literal["streaming", "non_streaming"]
TEXT_LAYOUTS: tuple[TextLayout, ...] = get_args(TextLayout)


class PartOptions(TypedDict, total=False):
    """Options that `Speech` passes on: fields of the `SpeechRequest` of each part."""

    voice: str | None
    instruct: str | None
    text_layout: TextLayout | None
    sampling: Mapping[str, float] | None
    seed: int
    budget: float | None
    may_be_empty: bool
    chunk_frames: int
    store_prefix: bool


class SpeechOptions(PartOptions, total=False):
    """Keyword arguments of `TextToSpeech.speak`.

    language: see `SpeechRequest`; also for the clean-up and the ends of sentences (default: the
    language of the voice). verbatim: no clean-up. lines: each line is a part, which comes when it ends.
    pause: seconds of silence between two parts of the text. max_frames: frames of 80 ms of the whole speech
    (None: no limit). The others are fields of `SpeechRequest`.
    """

    language: str | None
    verbatim: bool
    lines: bool
    pause: float
    max_frames: int | None


@dataclass(frozen=True)
class SpeechRequest:
    """A text to speak in one part, as it is.

    `voice` is a name or the path of a voice file; None is the bundle's default. `language` is an ISO 639
    code, an English name, the model's own name of a language, or `auto` (None, `auto`: the model decides).
    `instruct` says in words how to speak, or describes the voice. `text_layout`: the model gets the text with
    the frames (`streaming`) or before them (`non_streaming`; None: what the model does by itself). `sampling`
    changes settings of the model's sampling by name (see `SAMPLING`). `seed` decides the start noise, which
    is the same on every target. Speech stops after `max_frames` frames of 80 ms, or when it is `budget` times
    as long as its text usually takes, repeats itself or is silent for 4 s (None: none of these limits). The
    model cannot end it before the first frame unless it `may_be_empty`. Samples come in chunks of
    `chunk_frames` frames. `store_prefix`: whether the cache rows of the voice may be stored in the user's
    cache folder; with an instruction they are not.
    """

    text: str
    voice: str | None = None
    language: str | None = None
    instruct: str | None = None
    text_layout: TextLayout | None = None
    sampling: Mapping[str, float] | None = None
    seed: int = 0
    max_frames: int = 2048
    budget: float | None = DEFAULT_BUDGET
    may_be_empty: bool = False
    chunk_frames: int = 5
    store_prefix: bool = True

    def __post_init__(self) -> None:
        """Raises UsageError that names the wrong field."""
        for name, text, kinds in (("text", self.text, str), ("instruct", self.instruct, (str, type(None)))):
            if not isinstance(text, kinds):
                raise UsageError(f"{name} {text!r}: expected a str", field=name)
        for name, value, least in (
            ("max_frames", self.max_frames, 1),
            ("chunk_frames", self.chunk_frames, 1),
            ("seed", self.seed, 0),
        ):
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise UsageError(f"{name} {value!r}: expected an int of at least {least}", field=name)
        if self.text_layout not in (None, *TEXT_LAYOUTS):
            raise UsageError(
                f"text_layout {self.text_layout!r}: expected {' or '.join(TEXT_LAYOUTS)}", field="text_layout"
            )
        if self.voice is not None and not isinstance(self.voice, str | PathLike):
            raise UsageError(f"voice {self.voice!r}: expected a name or the path of a file", field="voice")
        check_sampling(self.sampling)
        if self.budget is not None and not (is_number(self.budget) and 0 < self.budget < math.inf):
            raise UsageError(f"budget {self.budget!r}: expected a positive number or None", field="budget")

    def budget_frames(self, estimated_frames: float) -> float:
        """Frames after which speech is longer than its text explains: the model does not find the end."""
        if self.budget is None:
            return math.inf
        words = sum(category(character).startswith(WORDS) for character in self.text)
        spare = min(SPARE_FRAMES, LEAST_SPARE_FRAMES + WORD_FRAMES * words + round(estimated_frames))
        return math.ceil(self.budget * estimated_frames) + spare
