"""`ForcedAlignment`: the task of a bundle that finds the times of the words of a text."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from voxport.runtime.audio.captions import Word

HALF = 0.5  # more times that ran backwards, or a lower confidence, let doubt the text


@dataclass(frozen=True)
class Alignment:
    """Words as they stand in the text. `mended` is the share of times that ran backwards, `confidence` the
    mean probability of a time or one a step beside it: many run backwards, and few are probable, if the text
    is not what is said.
    """

    words: list[Word]
    mended: float
    confidence: float

    @property
    def doubt(self) -> str:
        """Why the times may be wrong; empty if they seem right."""
        if not self.words or (self.mended < HALF <= self.confidence):
            return ""
        backwards = f"{100 * self.mended:.0f} % of the times ran backwards, and " if self.mended else ""
        sure = f"the model gives the times a confidence of {100 * self.confidence:.0f} %"
        return f"{backwards}{sure}: is this text what is said?"


class ForcedAlignment(ABC):
    """Finds when the words of a text are spoken. Threads take turns.

    languages: codes of ISO 639 of those that the model was trained on.
    sample_rate: of the sound, in Hz.
    fitting_s: seconds of sound that fit the model with the text of fast speech.
    """

    languages: tuple[str, ...]
    sample_rate: int
    fitting_s: float

    @abstractmethod
    def align(self, samples: np.ndarray, text: str, language: str = "") -> Alignment:
        """The words of `text` with their times in samples float32 [n].

        `language` is a code, which decides what a word is. Logs a warning on one that the model was not
        trained on. Raises UsageError if text and recording do not fit the model.
        """

    @abstractmethod
    def open_ahead(self) -> None:
        """Begins to open the model beside the caller, who has other work first."""

    @abstractmethod
    def open_files(self) -> None:
        """Opens all files of the bundle and waits. Raises VoxportError."""
