"""From a text to samples: a bundle, its tokenizer, voices and engine behind one object."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import numpy as np

from bundle.bundle import Bundle
from bundle.errors import UsageError
from runtime.engines import DEFAULT, open_engine
from runtime.engines.base import EngineOptions
from runtime.families import read_constants
from runtime.families.voxtral_tts.model import BATCHED, FAMILY, check_length
from runtime.families.voxtral_tts.prefix_cache import PrefixCache
from runtime.families.voxtral_tts.utterance import Script, speak, speak_together
from runtime.families.voxtral_tts.voices import choose_voice
from runtime.text.cleanup import check_text, clean_text
from runtime.text.tokenizer import SpeechTokenizer

log = logging.getLogger(__name__)


class Synthesizer:
    """Speaks texts from one bundle; utterances may run one after another or side by side, each on a stream of its own."""

    def __init__(self, folder: Path | str, options: EngineOptions = DEFAULT, check: bool = True):
        """`check` reads every file once and compares its hash: 0.6 s per GB. Raises IntegrityError that names the file."""
        self.bundle = Bundle(folder)
        manifest = self.bundle.manifest
        self.constants = read_constants(self.bundle.job, FAMILY)
        if check:
            self.bundle.check_hashes()
        if not manifest.tokenizer:
            raise UsageError(
                f"{folder}: the bundle has no tokenizer, so it cannot read a text; export from a checkpoint with tekken.json"
            )
        if not self.bundle.is_verified:
            log.warning("%s: this bundle is %s", folder, manifest.verification.status)
        self._engine = open_engine(self.bundle, options)
        self._kept = PrefixCache(self.bundle, self._engine.identity)
        self._tokenizer = SpeechTokenizer(self.bundle.folder / manifest.tokenizer[0])

    @property
    def sample_rate(self) -> int:
        return self.constants.sample_rate

    def speak(
        self,
        text: str,
        voice: str | None = None,
        seed: int = 0,
        max_frames: int = 2048,
        chunk_frames: int = 5,
        clean: bool = False,
    ) -> Generator[np.ndarray, None, bool]:
        """Yields float32 samples [n] in order, and returns whether the model itself ended the speech. Raises UsageError before the first sound."""
        script = self._script(text, voice, seed, max_frames, chunk_frames, clean)
        return (yield from speak(self._engine.stream(), self.constants, script, self._kept))

    def speak_all(
        self,
        texts: Sequence[str],
        voice: str | None = None,
        seed: int = 0,
        max_frames: int = 2048,
        chunk_frames: int = 5,
        clean: bool = False,
        at_once: int = 4,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (index of a text, float32 samples [n]), each text's in order. Up to `at_once` texts are spoken in one pass over the
        weights where the engine can (ONNX), one after another where it cannot; a text's sound is that of `speak`, up to the
        order of sums. Raises UsageError before the first sound.
        """
        if isinstance(texts, str) or not texts:
            raise UsageError(f"speak_all: {'one str' if texts else 'no text'}; expected a list of texts")
        if at_once < 1:
            raise UsageError(f"speak_all: at_once {at_once}: expected at least 1")
        scripts = []
        for index, text in enumerate(texts):
            try:
                scripts.append(self._script(text, voice, seed, max_frames, chunk_frames, clean))
            except UsageError as error:
                raise UsageError(f"speak_all: text {index}: {error}") from None
        count = min(at_once, len(scripts), *(self.bundle.component(name).max_batch for name in BATCHED))
        yield from speak_together(self._engine.batched(count), self.constants, scripts, self._kept)

    def _script(
        self, text: str, voice: str | None, seed: int, max_frames: int, chunk_frames: int, clean: bool
    ) -> Script:
        if not isinstance(text, str):
            raise UsageError(f"text {text!r}: expected a str")
        text = check_text(clean_text(text) if clean else text)
        rows = choose_voice(self.bundle, voice, self.constants.dim)
        ids = np.array(self._tokenizer.encode(text, len(rows)), dtype=np.int64)
        if ids.max() >= self.constants.vocab_size:
            raise UsageError(
                f"{self.bundle.folder}: the tokenizer gives id {ids.max()}, the model has {self.constants.vocab_size}; they do not belong together"
            )
        for what, value, least in (
            ("max_frames", max_frames, 1),
            ("chunk_frames", chunk_frames, 1),
            ("seed", seed, 0),
        ):
            if value < least:
                raise UsageError(f"{what} {value}: expected at least {least}")
        check_length(len(ids), self.constants, self.bundle.job.cache_length)
        return Script(ids, rows, seed, max_frames, chunk_frames)
