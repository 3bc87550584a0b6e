"""`TextToSpeech`: the task that a text-to-speech family implements, and its requests."""

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np

from bundle.errors import UsageError
from runtime.batching import BatchedDecoder, Status

DEFAULT_SLOTS = 4
DEFAULT_BUDGET = 3.0
FRAMES_PER_CHARACTER = 0.68  # published for Voxtral-TTS
SPARE_FRAMES = 40  # 3.2 s: for pauses, and for texts of a few characters


class SpeechOptions(TypedDict, total=False):
    """Keyword arguments of `TextToSpeech.speak`: the fields of a `SpeechRequest` besides its text."""

    voice: str | None
    seed: int
    max_frames: int
    budget: float | None
    may_be_empty: bool
    chunk_frames: int
    clean_text: bool


@dataclass(frozen=True)
class SpeechRequest:
    """A text to speak.

    `voice` is a name or the path of a voice file; None is the bundle's default. `seed` decides the start
    noise, which is the same on every target. Speech stops after `max_frames` frames of 80 ms, or when it is
    `budget` times as long as its text usually takes (None: no such limit). The model cannot end it before
    the first frame unless it `may_be_empty`. Samples come in chunks of `chunk_frames` frames. `clean_text`
    removes markup and replaces symbols by words (English).
    """

    text: str
    voice: str | None = None
    seed: int = 0
    max_frames: int = 2048
    budget: float | None = DEFAULT_BUDGET
    may_be_empty: bool = False
    chunk_frames: int = 5
    clean_text: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError that names the wrong field."""
        if not isinstance(self.text, str):
            raise UsageError(f"text {self.text!r}: expected a str", field="text")
        for name, value, least in (
            ("max_frames", self.max_frames, 1),
            ("chunk_frames", self.chunk_frames, 1),
            ("seed", self.seed, 0),
        ):
            if value < least:
                raise UsageError(f"{name} {value}: expected at least {least}", field=name)
        if self.budget is not None and not 0 < self.budget < math.inf:
            raise UsageError(f"budget {self.budget}: expected a positive number or None", field="budget")

    @property
    def budget_frames(self) -> float:
        """Frames after which speech is longer than its text explains: the model does not find the end."""
        if self.budget is None:
            return math.inf
        return math.ceil(self.budget * FRAMES_PER_CHARACTER * len(self.text)) + SPARE_FRAMES


class TextToSpeech(ABC):
    """Speaks texts from one bundle.

    Calls from several threads are safe; each request has a stream or a slot of its own.
    """

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """Samples per second of the speech."""

    @property
    @abstractmethod
    def max_slots(self) -> int:
        """Requests that one call of the engine can serve; 1 where the engine does not batch."""

    @abstractmethod
    def voices(self) -> dict[str, int]:
        """Names of the bundle's voices, and the prompt rows of each."""

    @abstractmethod
    def batched(self, slots: int) -> BatchedDecoder[SpeechRequest]:
        """A decoder for up to `slots` concurrent requests. Raises UsageError above `max_slots`."""

    def speak(self, text: str, **options: Unpack[SpeechOptions]) -> Generator[np.ndarray, None, Status]:
        """Yields float32 samples [n] in order; returns why the speech ended.

        Raises UsageError before the first samples.
        """
        decoder = self.batched(1)
        ticket = decoder.submit(SpeechRequest(text, **options))
        for _, samples in decoder.run():
            yield samples
        return ticket.status

    def speak_all(
        self, texts: Sequence[str], slots: int = DEFAULT_SLOTS, **options: Unpack[SpeechOptions]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (index of a text, float32 samples [n]); the samples of one text come in order.

        Up to `slots` texts share each pass over the weights where the engine batches (ONNX); else texts are
        spoken one after another. The samples equal those of `speak` up to the order of float additions.
        Raises UsageError before the first samples.
        """
        if isinstance(texts, str) or not texts:
            raise UsageError(f"speak_all: {'one str' if texts else 'no text'}; expected a list of texts")
        if slots < 1:
            raise UsageError(f"speak_all: slots {slots}: expected at least 1")
        decoder = self.batched(min(slots, len(texts), self.max_slots))
        indices = {}
        for index, text in enumerate(texts):
            try:
                indices[decoder.submit(SpeechRequest(text, **options))] = index
            except UsageError as error:
                raise UsageError(f"speak_all: text {index}: {error}") from None
        for ticket, samples in decoder.run():
            yield indices[ticket], samples
