"""From a text to samples: a bundle, its tokenizer, voices and engine behind one object."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from runtime.bundle import Bundle
from runtime.engines import open_engine
from runtime.errors import UsageError
from runtime.text import check_text, clean_text
from runtime.tokenizer import SpeechTokenizer
from runtime.voices import choose_voice
from runtime.voxtral_tts import parse_constants, speak

log = logging.getLogger(__name__)


class Synthesizer:
    """Speaks texts from one bundle; utterances may run one after another or side by side, each on a stream of its own."""

    def __init__(self, folder: Path | str, threads: int | None = None):
        self.bundle = Bundle(folder)
        manifest = self.bundle.manifest
        self.constants = parse_constants(manifest.constants)
        if manifest.tokenizer is None:
            raise UsageError(f"{folder}: the bundle has no tokenizer, so it cannot read a text; export from a checkpoint with tekken.json")
        if not self.bundle.is_verified:
            log.warning("%s: this bundle is %s", folder, manifest.verification["status"])
        self._engine = open_engine(self.bundle, threads)
        self._tokenizer = SpeechTokenizer(self.bundle.folder / manifest.tokenizer)
        self.samples = 0

    @property
    def sample_rate(self) -> int:
        return self.constants.sample_rate

    @property
    def whole(self) -> int:
        """A chunk size that one codec call takes: what to use when nobody listens meanwhile."""
        return self.bundle.component("codec_step").dims.get("T", (1, 1))[1]

    def speak(
        self, text: str, voice: str | None = None, seed: int = 0, max_frames: int = 2048, chunk_frames: int = 5, clean: bool = False
    ) -> Iterator[np.ndarray]:
        """Yields float32 samples [n] in order; `self.samples` counts them. Raises UsageError before the first sound."""
        text = check_text(clean_text(text) if clean else text)
        rows = choose_voice(self.bundle, voice)
        ids = np.array(self._tokenizer.encode(text, len(rows)), dtype=np.int64)
        if ids.max() >= self.constants.vocab_size:
            raise UsageError(
                f"{self.bundle.folder}: the tokenizer gives id {ids.max()}, the model has {self.constants.vocab_size}; they do not belong together"
            )
        self.samples = 0
        first_frame = self.bundle.manifest.switches["first_frame"]
        for piece in speak(self._engine.stream(), self.constants, first_frame, ids, rows, seed, max_frames, chunk_frames):
            self.samples += len(piece)
            yield piece
