"""`SpeechToText`: the task of a bundle that transcribes. `runtime.open` returns an implementation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from runtime.audio.captions import Word


@dataclass(frozen=True)
class TranscriptDelta:
    """Text that has become complete since the last delta, and the words that have."""

    text: str
    words: list[Word]


<<<<<<< HEAD
class Transcriber:
    """Transcribes recordings and live streams from one bundle, each on an engine stream of its own."""

    def __init__(self, folder: Path | str, options: EngineOptions = DEFAULT, check: bool = True):
        """`check` reads every file once and compares its hash: 0.6 s per GB. Raises IntegrityError that names the file."""
        self.bundle = Bundle(folder)
        manifest = self.bundle.manifest
        self.constants = read_constants(self.bundle.job, FAMILY)
        if check:
            self.bundle.check_hashes()
        if not manifest.tokenizer:
            raise UsageError(
                f"{folder}: the bundle has no tokenizer, so it cannot write text; export from a checkpoint with tekken.json"
            )
        if not self.bundle.is_verified:
            log.warning("%s: this bundle is %s", folder, manifest.verification.status)
        self._piece = load_pieces(self.bundle.folder / manifest.tokenizer[0])
        self._engine, self._is_warm = open_engine(self.bundle, options), False
=======
class SpeechToText(ABC):
    """Transcribes recordings and live streams. Transcriptions are independent and may be interleaved."""
>>>>>>> c95df01 (voxtral_realtime: encoder, decoder, transcript, task, trace, verification and bench as modules; the task SpeechToText)

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """Sample rate of the audio in Hz."""

    @property
    @abstractmethod
    def delays_ms(self) -> tuple[int, ...]:
        """Delays of the text behind the audio that the bundle supports, in ms. The first is the default."""

    @abstractmethod
    def check_live(self) -> None:
<<<<<<< HEAD
        """Raises UsageError where the bundle was made for recordings only."""
        if LIVE not in {entry.name for entry in self.bundle.components}:
            raise UsageError(
                f"{self.bundle.folder}: made for recordings, not for live sound; export with --streaming"
            )
=======
        """Raises UsageError if the bundle is for recordings only."""
>>>>>>> c95df01 (voxtral_realtime: encoder, decoder, transcript, task, trace, verification and bench as modules; the task SpeechToText)

    @abstractmethod
    def transcribe(
        self,
        blocks: Iterable[np.ndarray],
        delay_ms: int | None = None,
        live: bool = False,
        chunk_tokens: int = 1,
    ) -> Iterator[TranscriptDelta]:
        """Transcribes blocks of samples float32 [n] of any length, at `sample_rate`.

        A delta is returned as soon as its text is complete. With `live`, the encoder takes `chunk_tokens` *
        80 ms per call; without, as much as a call takes. Raises UsageError at once on a delay or a number of
        tokens that the bundle does not support, and later on a block that is not such an array.
        """
