"""`QwenAligner`: times of the words of a text that is spoken in a recording."""

import logging
from collections.abc import Sequence
from threading import Lock

import numpy as np

from voxport.bundle.constants.qwen3_asr import ALIGN, AlignerConstants, Qwen3ASRConstants
from voxport.bundle.errors import UsageError
from voxport.runtime.audio.captions import Word
from voxport.runtime.engines.base import Engine, Stream
from voxport.runtime.families.qwen3_asr.encoder import SoundEncoder, rows_of
from voxport.runtime.families.qwen3_asr.features import GrowingMel, frames_of
from voxport.runtime.families.qwen3_asr.recogniser import with_sound
from voxport.runtime.families.qwen3_asr.text import Tokenizer
from voxport.runtime.families.qwen3_asr.times import mended
from voxport.runtime.families.qwen3_asr.words import as_written, words_of
from voxport.runtime.forced_alignment import Alignment, ForcedAlignment
from voxport.runtime.speech_to_text import check_samples

# Rows of the caches for the text of a second of sound: tokens, and two a word. Fast speech has 14.
TEXT_ROWS_PER_SECOND = 24
log = logging.getLogger(__name__)


class QwenAligner(ForcedAlignment):
    """Each alignment uses a stream of its own on the shared engine. Threads take turns."""

    def __init__(
        self,
        engine: Engine,
        constants: Qwen3ASRConstants,
        tokenizer: Tokenizer,
        capacity: int,
        languages: Sequence[str] = (),
    ):
        """`capacity` is the number of rows of the caches."""
        c, aligner = constants, constants.aligner
        assert aligner
        self._engine, self._constants, self._tokenizer = engine, constants, tokenizer
        self._lock, self._capacity = Lock(), capacity
        self._aligner: AlignerConstants = aligner
        self._warned = set[str]()  # languages
        self.sample_rate, self.languages = c.sample_rate, tuple(languages)
        self.longest_s = aligner.classes * aligner.step_ms / 1000  # up to which the model knows times
        sound_rows = c.chunk_rows * c.sample_rate / (c.chunk_frames * c.hop_length)
        self.fitting_s = min(self.longest_s, (self._capacity - 2) / (sound_rows + TEXT_ROWS_PER_SECOND))

    def open_ahead(self) -> None:
        self._engine.open_ahead()

    def open_files(self) -> None:
        self._engine.open_files()

    def align(self, samples: np.ndarray, text: str, language: str = "") -> Alignment:
        check_samples(samples, rate := self.sample_rate)
        if language not in self._warned:
            self._warned.add(language)
            if language and language not in self.languages:
                known = ", ".join(self.languages)
                log.warning("language %s: the aligner was trained on %s; times may be wrong", language, known)
        if len(samples) > self.longest_s * rate:
            raise UsageError(
                f"recording: has {len(samples) / rate:.0f} s, and the model knows times up to "
                f"{self.longest_s:.0f} s; divide the recording and its text"
            )
        words = words_of(text, language)
        if not words:
            return Alignment([], 0.0, 0.0)
        ids = self._prompt(len(samples), words)
        with self._lock:
            logits = self._logits(samples, ids)
        times: list[int] = (logits.argmax(axis=1) * self._aligner.step_ms).tolist()
        right = mended(times)
        seconds = [round(time / 1000, 3) for time in right]
        written = as_written(words, text)
        found = [Word(word, *seconds[2 * index : 2 * index + 2]) for index, word in enumerate(written)]
        moved = sum(a != b for a, b in zip(times, right, strict=True))
        return Alignment(found, moved / len(times), _confidence(logits))

    def _logits(self, samples: np.ndarray, ids: list[int]) -> np.ndarray:
        """Logits float32 [2 * words, classes] of the times."""
        stream, constants = self._engine.stream(), self._constants
        sound = SoundEncoder(stream, constants).encode(GrowingMel(constants).of(samples))
        return time_logits(stream, constants, ids, sound)

    def _prompt(self, samples: int, words: list[str]) -> list[int]:
        """Raises UsageError if it does not fit the caches, before the sound is encoded."""
        places = [self._aligner.timestamp_id] * 2  # of the start and the end of a word
        ids = aligner_prompt(
            rows_of(frames_of(samples, self._constants), self._constants),
            self._constants,
            [each for word in words for each in (*self._tokenizer.encode(word), *places)],
        )
        if len(ids) > self._capacity:
            raise UsageError(
                f"text: with its recording it has {len(ids)} rows, and the bundle keeps "
                f"{self._capacity}; divide both"
            )
        return ids


def _confidence(logits: np.ndarray) -> float:
    """The mean probability of the largest of each row and its two neighbours."""
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    is_near = np.abs(np.arange(logits.shape[1]) - logits.argmax(axis=1)[:, None]) <= 1
    return float((chances.sum(axis=1, where=is_near) / chances.sum(axis=1)).mean())


def aligner_prompt(rows: int, constants: Qwen3ASRConstants, words: Sequence[int]) -> list[int]:
    """The ids of the sound, then those of words and of the places of their times."""
    return [constants.audio_start_id, *[constants.audio_pad_id] * rows, constants.audio_end_id, *words]


def time_logits(
    stream: Stream, constants: Qwen3ASRConstants, ids: list[int], sound: np.ndarray
) -> np.ndarray:
    """Logits float32 [n, classes] at each place of a time in ids."""
    assert constants.aligner
    rows = with_sound(stream, constants, np.array(ids), sound)
    most, found = stream.signatures[ALIGN].dims["S"][1], list[np.ndarray]()
    for start in range(0, len(ids), most):
        inputs = {"embeddings": rows[:, start : start + most], "position": np.array([start])}
        found.append(stream.run(ALIGN, inputs)["logits"][0])
    logits: np.ndarray = np.concatenate(found)[np.array(ids) == constants.aligner.timestamp_id]
    return logits
