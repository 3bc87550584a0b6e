"""From sound to text: a bundle, its tokenizer and engine behind one object."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bundle.bundle import Bundle
from bundle.errors import UsageError
from runtime.audio.captions import Word
from runtime.engines import DEFAULT, open_engine
from runtime.engines.base import EngineOptions
from runtime.families import read_constants
from runtime.families.voxtral_realtime.model import FAMILY, LIVE, Listener, Transcript
from runtime.text.tokenizer import load_pieces

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Heard:
    """Text that has just become complete, and the words that did."""

    text: str
    words: list[Word]


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

    @property
    def sample_rate(self) -> int:
        """Of the samples that are taken, in Hz."""
        return self.constants.sample_rate

    def check_live(self) -> None:
        """Raises UsageError where the bundle was made for recordings only."""
        if LIVE not in {entry.name for entry in self.bundle.components}:
            raise UsageError(
                f"{self.bundle.folder}: made for recordings, not for live sound; export with --streaming"
            )

    def transcribe(
        self, blocks: Iterable[np.ndarray], delay_ms: int | None = None, live: bool = False, at_once: int = 1
    ) -> Iterator[Heard]:
        """Yields what is heard in blocks of float32 samples [n] of any length, as it becomes due. `live` encodes `at_once` times 80 ms
        at a time; a recording is encoded as far at once as the bundle allows. Raises UsageError on a delay that it does not have."""
        delay = self.constants.delay_index(delay_ms)
        if live:
            self.check_live()
            self._warm_up()
        listener = Listener(self._engine.stream(), self.constants, delay, at_once if live else None)
        transcript = Transcript(self.constants, self._piece)
        yield from self._heard(
            listener.feed(np.zeros(0, np.float32)), transcript
        )  # the silence in front, while no sound is there yet
        for block in blocks:
            yield from self._heard(listener.feed(block), transcript)
        yield from self._heard(listener.finish(), transcript)
        text = transcript.finish()
        yield Heard(text, transcript.take_words())

    def _warm_up(self) -> None:
        """Opens every graph, which takes seconds at the published size, before sound is taken; once."""
        if self._is_warm:
            return
        listener = Listener(self._engine.stream(), self.constants, at_once=1)
        enough = (self.constants.delays[0] + 3) * self.constants.samples_per_token
        for _ in listener.feed(np.zeros(enough, np.float32)):
            pass
        self._is_warm = True
        log.info("listening")

    def _heard(self, tokens: Iterable[int], transcript: Transcript) -> Iterator[Heard]:
        for token in tokens:
            text = transcript.add(token)
            words = transcript.take_words()
            if text or words:
                yield Heard(text, words)
