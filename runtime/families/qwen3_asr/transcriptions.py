"""Transcriptions of recordings and of live sound."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from voxport.bundle.constants.qwen3_asr import Qwen3ASRConstants
from voxport.bundle.errors import UsageError
from voxport.runtime.engines.base import Stream
from voxport.runtime.families.qwen3_asr.answer import Answer, Request
from voxport.runtime.families.qwen3_asr.encoder import SoundEncoder, rows_of
from voxport.runtime.families.qwen3_asr.features import GrowingMel, frames_of
from voxport.runtime.families.qwen3_asr.recogniser import Recogniser
from voxport.runtime.families.qwen3_asr.splitting import SEARCH_S, SHORTEST_S, Samples, split
from voxport.runtime.families.qwen3_asr.streaming import REPLACEMENT, StreamSettings, kept_answer
from voxport.runtime.families.qwen3_asr.text import Tokenizer, forced_answer
from voxport.runtime.speech_to_text import TranscriptDelta, check_samples

# Rows of the caches for a second of sound: 13 of the sound, and 16 of its text. English has 2 to 5 tokens,
# Hindi and Greek up to 15.
TOKENS_PER_SECOND = 16
ROWS_PER_SECOND = 13 + TOKENS_PER_SECOND
PROMPT_ROWS = 64  # for what is around sound and context in a prompt
LEAST_S = 10.0  # of sound for which a context must leave room
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """What all transcriptions of a bundle have in common."""

    constants: Qwen3ASRConstants
    tokenizer: Tokenizer
    capacity: int  # rows of the caches

    def longest_s(self, request: Request) -> float:
        """Seconds of sound that one prompt takes. Raises UsageError if the context leaves no room."""
        count = len(self.tokenizer.encode(request.context))
        found = (self.capacity - PROMPT_ROWS - count) / ROWS_PER_SECOND
        if found < LEAST_S:
            raise UsageError(
                f"context: has {count} tokens, and the bundle keeps {self.capacity} rows; give a shorter "
                "one, or export with a larger cache",
                field="context",
            )
        return min(found, request.longest_s)


class Segment:
    """Sound that one prompt takes, and what the model answered to it last."""

    def __init__(self, stream: Stream, parts: Parts, request: Request):
        self._parts, self._request, self._forced = parts, request, forced_answer(request.language)
        self._mel, self._encoder = GrowingMel(parts.constants), SoundEncoder(stream, parts.constants)
        self._recogniser = Recogniser(stream, parts.constants)
        self._is_warned = False

    def answer(self, samples: np.ndarray, kept: str = "") -> Iterator[str]:
        """Continues the answer `kept` to samples float32 [n] -> the whole answer after each token."""
        tokenizer, text, tokens = self._parts.tokenizer, kept, list[int]()
        sound = self._encoder.encode(self._mel.of(samples))
        ids = tokenizer.prompt(len(sound), self._request.context, self._forced + kept)
        seconds = len(samples) / self._parts.constants.sample_rate
        limit = round((1 + seconds) * TOKENS_PER_SECOND) - len(tokenizer.encode_answer(kept))
        limit = min(limit, self._parts.capacity - len(ids))
        for count, token in enumerate(self._recogniser.answer(ids, sound)):
            if count >= limit:  # a loop ends there
                self._warn(seconds)
                return
            tokens.append(token)
            end = tokenizer.decode(tokens)
            yield text + end
            if not end.endswith(REPLACEMENT):  # no later token belongs to its last character
                text, tokens = text + end, []

    def _warn(self, seconds: float) -> None:
        if not self._is_warned:
            text = "%.0f s of sound: the model wrote more tokens than speech has; the rest is cut"
            log.warning(text, seconds)
            self._is_warned = True

    def has_room(self, samples: int, kept: str) -> bool:
        """Whether a prompt for so many samples, `kept` and some more text fit the caches."""
        constants = self._parts.constants
        sound = rows_of(frames_of(samples, constants), constants)
        ids = self._parts.tokenizer.prompt(sound, self._request.context, self._forced + kept)
        return len(ids) + TOKENS_PER_SECOND < self._parts.capacity


class RecordingTranscription:
    """A recording; a long one is divided. Implements `runtime.speech_to_text.Transcription`."""

    def __init__(self, stream: Stream, parts: Parts, request: Request):
        self._stream, self._parts, self._request = stream, parts, request
        self._longest_s, self._answer = parts.longest_s(request), Answer(request.language)
        self._samples, self._before = Samples(), 0  # samples of finished pieces

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        rate = self._parts.constants.sample_rate
        check_samples(samples, rate, self._before + len(self._samples))
        self._samples.add(samples)
        while len(self._samples) > (self._longest_s + SEARCH_S) * rate:
            first = split(self._samples.all, self._longest_s, rate)[0]
            self._samples, self._before = Samples(self._samples.all[len(first) :]), self._before + len(first)
            yield from self._transcribe(first)

    def finish(self) -> Iterator[TranscriptDelta]:
        rate = self._parts.constants.sample_rate
        for piece in split(self._samples.all, self._longest_s, rate, is_rest=self._before > 0):
            yield from self._transcribe(piece)

    def _transcribe(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        raw = ""
        for raw in Segment(self._stream, self._parts, self._request).answer(samples):
            yield from self._answer.more(raw)
        yield from self._answer.more(raw, is_final=True)


class LiveTranscription:
    """Live sound: see `streaming`. Implements `runtime.speech_to_text.Transcription`.

    Text is given out when no later chunk changes it. After as much sound or text as a prompt takes, all text
    is given out, and the next chunk begins anew.
    """

    def __init__(self, stream: Stream, parts: Parts, request: Request, settings: StreamSettings):
        self._stream, self._parts, self._request, self._settings = stream, parts, request, settings
        self._longest_s, self._answer = parts.longest_s(request), Answer(request.language)
        self._size = round(settings.chunk_s * parts.constants.sample_rate)
        self._waiting, self._before = np.zeros(0, np.float32), 0  # samples of earlier chunks
        self._begin()

    def _begin(self) -> None:
        self._segment = Segment(self._stream, self._parts, self._request)
        self._samples, self._chunks = Samples(), 0
        self._raw = self._kept = ""

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        check_samples(samples, self._parts.constants.sample_rate, self._before + len(self._waiting))
        self._waiting = np.concatenate((self._waiting, samples))
        while len(self._waiting) >= self._size:
            chunk, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            self._before += self._size
            yield from self._step(chunk)
            count = len(self._samples) + self._size
            is_long = count > self._longest_s * self._parts.constants.sample_rate
            if is_long or not self._segment.has_room(count, self._raw):
                yield from self._answer.more(self._raw, is_final=True)
                self._begin()

    def finish(self) -> Iterator[TranscriptDelta]:
        if len(self._waiting):
            if self._before and not len(self._samples):  # a short rest of divided sound, as in `split`
                missing = round(SHORTEST_S * self._parts.constants.sample_rate) - len(self._waiting)
                self._waiting = np.pad(self._waiting, (0, max(0, missing)))
            yield from self._step(self._waiting, is_last=True)
        yield from self._answer.more(self._raw, is_final=True)

    def _step(self, chunk: np.ndarray, is_last: bool = False) -> Iterator[TranscriptDelta]:
        kept = kept_answer(self._parts.tokenizer, self._raw, self._chunks, self._settings, is_last)
        if len(kept) > len(self._kept):  # what was kept once was given out, and stays
            self._kept = kept
        self._samples.add(chunk)
        self._raw = [self._kept, *self._segment.answer(self._samples.all, self._kept)][-1]
        self._chunks += 1
        yield from self._answer.more(self._kept)
