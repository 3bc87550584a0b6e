"""`AlignedSpeechToText`: a recogniser of any family, whose words get their times from an aligner."""

import logging
from collections.abc import Iterator
from typing import Unpack

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.captions import Word
from voxport.runtime.families.qwen3_asr.answer import NO_SPACES
from voxport.runtime.families.qwen3_asr.splitting import SEARCH_S, SHORTEST_S, Samples, split
from voxport.runtime.families.qwen3_asr.words import as_written, words_of
from voxport.runtime.forced_alignment import ForcedAlignment
from voxport.runtime.speech_to_text import (
    LiveBatch,
    SpeechToText,
    TranscriptDelta,
    Transcription,
    TranscriptionOptions,
    check_samples,
)
from voxport.runtime.text.languages import AUTO, check_language

log = logging.getLogger(__name__)
PIECE_S = 180.0  # of sound that is aligned at once, as in the official package


class AlignedSpeechToText(SpeechToText):
    """Recordings are transcribed in pieces, and each piece is aligned with its text. Live sound is not
    aligned, because an aligner needs the whole text.
    """

    def __init__(self, task: SpeechToText, aligner: ForcedAlignment, piece_s: float = PIECE_S):
        """Raises UsageError if the two need sound of different rates."""
        if task.sample_rate != aligner.sample_rate:
            raise UsageError(
                f"aligner: needs sound of {aligner.sample_rate} Hz, and the recogniser of {task.sample_rate}"
            )
        self._task, self._aligner = task, aligner
        self._piece_s = max(SHORTEST_S, min(piece_s, aligner.fitting_s - SEARCH_S))
        self.languages, self.has_hints, self.is_steady = task.languages, task.has_hints, task.is_steady
        self.ignored, self.live_only = task.ignored, task.live_only

    @property
    def sample_rate(self) -> int:
        return self._task.sample_rate

    @property
    def delays_ms(self) -> tuple[int, ...]:
        return self._task.delays_ms

    @property
    def max_chunk_tokens(self) -> int:
        return self._task.max_chunk_tokens

    def open_files(self) -> None:
        self._task.open_files()
        self._aligner.open_files()

    def check_live(self) -> None:
        self._task.check_live()

    def check_context(self, context: str) -> None:
        self._task.check_context(context)

    def count_tokens(self, text: str, seconds: float) -> tuple[int, int]:
        return self._task.count_tokens(text, seconds)

    def begin(self, **options: Unpack[TranscriptionOptions]) -> Transcription:
        if options.get("live") or not options.get("words", True):
            return self._task.begin(**options)
        self._aligner.open_ahead()
        return _AlignedTranscription(self._task, self._aligner, self._piece_s, options)

    @property
    def max_live(self) -> int:
        return self._task.max_live

    def live_batch(self, slots: int) -> LiveBatch:
        return self._task.live_batch(slots)


class _AlignedTranscription:
    """A recording. Implements `runtime.speech_to_text.Transcription`."""

    def __init__(
        self, task: SpeechToText, aligner: ForcedAlignment, piece_s: float, options: TranscriptionOptions
    ):
        self._task, self._aligner, self._piece_s, self._options = task, aligner, piece_s, options
        self._rate = task.sample_rate
        known = check_language(options.get("language") or AUTO)
        self._known = known or (task.languages[0] if len(task.languages) == 1 else "")
        self._before, self._has_text = 0, False  # samples of finished pieces, and whether they have text
        self._start(Samples())

    def _start(self, samples: Samples) -> None:
        self._samples, self._taken, self._text = samples, 0, ""
        self._language = self._known  # that of an earlier piece may be another
        self._transcription = self._task.begin(**self._options)

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        check_samples(samples, self._rate, self._before + len(self._samples))
        self._samples.add(samples)
        while len(self._samples) > (self._piece_s + SEARCH_S) * self._rate:
            yield from self._finish_piece()
        sure = max(0, round((self._piece_s - SEARCH_S) * self._rate))  # no piece ends before
        yield from self._take(self._samples.all[:sure])

    def finish(self) -> Iterator[TranscriptDelta]:
        yield from self._finish_piece()
        while len(self._samples):
            yield from self._finish_piece()

    def _take(self, piece: np.ndarray) -> Iterator[TranscriptDelta]:
        """Transcribes what the piece has beyond the samples of earlier calls."""
        samples, self._taken = piece[self._taken :], max(self._taken, len(piece))
        yield from self._without_times(self._transcription.feed(samples))

    def _finish_piece(self) -> Iterator[TranscriptDelta]:
        """The rest of the text of the first piece, and its words."""
        piece = split(self._samples.all, self._piece_s, self._rate, is_rest=self._before > 0)[0]
        yield from self._take(piece)
        yield from self._without_times(self._transcription.finish())
        if text := self._text.strip():
            self._has_text = True
            yield TranscriptDelta("", self._words(piece, text), self._language)
        self._before += len(piece)
        self._samples = Samples(self._samples.all[len(piece) :])
        if len(self._samples):
            self._start(self._samples)

    def _words(self, piece: np.ndarray, text: str) -> list[Word]:
        """Words of a piece. Those that cannot be aligned are spread evenly, so that none is lost."""
        start = self._before / self._rate
        try:
            alignment = self._aligner.align(piece, text, self._language)
        except UsageError as error:
            log.warning("words from %.0f s on have no exact times, and are spread evenly: %s", start, error)
            found = _spread(text, self._language, len(piece) / self._rate)
        else:
            found = alignment.words
            if alignment.doubt:
                log.warning("words from %.0f s on: %s", start, alignment.doubt)
        return [Word(w.text, round(start + w.start, 3), round(start + w.end, 3)) for w in found]

    def _without_times(self, deltas: Iterator[TranscriptDelta]) -> Iterator[TranscriptDelta]:
        for delta in deltas:
            self._language = delta.language or self._language
            text = delta.text
            if text and not self._text and self._has_text and self._language not in NO_SPACES:
                text = f" {text.lstrip()}"
            self._text += text
            if text:
                yield TranscriptDelta(text, [], delta.language)


def _spread(text: str, language: str, seconds: float) -> list[Word]:
    words = words_of(text, language)
    written = as_written(words, text) if words else []
    size = seconds / max(1, len(written))
    return [Word(word, index * size, (index + 1) * size) for index, word in enumerate(written)]
