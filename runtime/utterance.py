"""Utterances in the slots of a batch. Each is spoken until the model ends, a limit is reached, or the speech
repeats itself or is silent.
"""

from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Any, Generic

import numpy as np

from voxport.runtime.batching import Fill, SlotOutput, Status
from voxport.runtime.engines.base import Stream
from voxport.runtime.slots import move_states
from voxport.runtime.speech_decoder import Constants, Decoder, FrameLoop, Noise, SpeechDecoder
from voxport.runtime.speech_request import SpeechRequest

RUNAWAY_FRAMES = 50  # 4 s: longer than a pause or a held sound of speech
MAX_PERIOD = 13  # frames: a second, a long word
# Root mean squares of frames. The level of the speech is one of its loudest frames, without single clicks.
# Whispers and room tone may both be 22 dB below loud speech. Room tone is steady: its frames differ by less
# than 4 dB, whispered syllables and gaps by 10 dB and more. Below 30 dB any sound counts as silence.
SILENCE = 10 ** (-50 / 20)  # below it there is no speech, until a frame was louder than `MIN_SPEECH`
MIN_SPEECH = 10 ** (-45 / 20)
SILENCE_RATIO = 10 ** (-30 / 20)  # ratio of silence to the level of the speech before
STEADY_RATIO, STEADY_RANGE = 10 ** (-18 / 20), 10 ** (6 / 20)  # ratio of steady sound; loudest to quietest
LOUD_FRAMES, LOUD_PART = (3, 12), 10  # the level is the third to twelfth loudest frame, at most a tenth


class RunawayGuard:
    """Follows the frames of one utterance.

    Whole frames are compared. The first code alone repeats in silence and in held sounds.
    """

    def __init__(self) -> None:
        self._last: deque[np.ndarray] = deque(maxlen=MAX_PERIOD)
        self._repeated = np.zeros(MAX_PERIOD, np.int64)  # frames in a row that equal the one `index` + 1 ago
        self._recent: deque[float] = deque(maxlen=RUNAWAY_FRAMES)  # levels
        self._levels: list[float] = []  # all frames, sorted

    def add_codes(self, codes: np.ndarray) -> Status | None:
        """Takes the codes int64 [K] of the next frame. Returns REPETITION if the last ones are a cycle."""
        equal = [np.array_equal(codes, earlier) for earlier in reversed(self._last)]
        equal += [False] * (MAX_PERIOD - len(equal))
        self._repeated = np.where(equal, self._repeated + 1, 0)
        self._last.append(codes.copy())
        return Status.REPETITION if self._repeated.max() >= RUNAWAY_FRAMES else None

    def add_samples(self, samples: np.ndarray, frames: int) -> int | None:
        """Takes the samples float32 [n] of the next `frames`. Returns how many of them precede the end of
        `RUNAWAY_FRAMES` silent ones; None if the speech is not silent for so long.
        """
        for index, frame in enumerate(samples.reshape(frames, -1)):
            level = float(np.sqrt(np.mean(frame**2)))
            insort(self._levels, level)
            self._recent.append(level)
            if len(self._recent) == RUNAWAY_FRAMES and self._is_silent():
                return index + 1
        return None

    def _is_silent(self) -> bool:
        """Whether the last `RUNAWAY_FRAMES` hold no speech, by all frames so far."""
        least, most = LOUD_FRAMES
        rank = min(max(least, len(self._levels) // LOUD_PART), most, len(self._levels))
        speech, loudest = self._levels[-rank], max(self._recent)
        if speech <= MIN_SPEECH:
            return loudest < SILENCE
        is_steady = loudest < STEADY_RANGE * min(self._recent)
        return loudest < speech * (STEADY_RATIO if is_steady else SILENCE_RATIO)


class FrameCollector:
    """Collects frames into chunks, and applies the limits of the request.

    A request without a budget is not guarded.
    """

    def __init__(
        self, decoder: SpeechDecoder[Any], request: SpeechRequest, estimated_frames: Callable[[str], float]
    ):
        """`estimated_frames`: see `TextToSpeech`."""
        self._decoder, self._request = decoder, request
        self._budget = request.budget_frames(estimated_frames(request.text))
        self._guard = RunawayGuard() if request.budget is not None else None
        self._waiting: list[np.ndarray] = []
        self._frames = 0

    def push(self, codes: np.ndarray | None) -> SlotOutput:
        """Takes the codes int64 [K] of a frame; None if the model ended the speech.

        Gives samples if a chunk is full or the speech ends.
        """
        final: Status | None = Status.END
        if codes is not None:
            self._waiting.append(codes)
            self._frames += 1
            final = self._limit_reached() or (self._guard.add_codes(codes) if self._guard else None)
        if not self._waiting or not (final or len(self._waiting) == self._request.chunk_frames):
            return SlotOutput(None, final)
        samples, frames = self._decoder.decode(np.stack(self._waiting)), len(self._waiting)
        self._waiting = []
        silent = self._guard.add_samples(samples, frames) if self._guard else None
        if silent is None or (silent == frames and final and codes is not None):
            return SlotOutput(samples, final)
        # frames of the chunk behind the silence are dropped, so the speech does not depend on its size
        return SlotOutput(samples[: silent * (len(samples) // frames)], Status.SILENCE)

    def _limit_reached(self) -> Status | None:
        if not self._decoder.has_room:
            return Status.CACHE
        if self._frames >= self._budget:
            return Status.BUDGET
        return Status.LIMIT if self._frames == self._request.max_frames else None


class Utterance(Generic[Decoder, Noise]):
    """A request that is being spoken: its decoder, noise and frames. `codes` int64 [K] are the last frame."""

    codes: np.ndarray

    def __init__(
        self,
        decoder: Decoder,
        seed: int,
        frames: FrameCollector,
        draw: Callable[[np.random.Generator], Noise],
    ):
        self.decoder, self._frames, self._draw = decoder, frames, draw
        self._generator = np.random.default_rng(seed)
        self._noise: Noise | None = None

    def noise(self) -> Noise:
        """Noise of the next frame. It stays the same until `push`."""
        if self._noise is None:
            self._noise = self._draw(self._generator)
        return self._noise

    def push(self, end_code: int) -> SlotOutput:
        """Takes the codes of a new frame."""
        self._noise = None
        return self._frames.push(None if self.codes[0] == end_code else self.codes)


class UtteranceSlots(ABC, Generic[Constants, Decoder, Noise]):
    """The operations of `runtime.batching.CodeSlots` that every family has: utterances by slot of one
    batched stream.
    """

    def __init__(
        self,
        stream: Stream,
        constants: Constants,
        loop: FrameLoop[Constants, Decoder, Noise],
        estimated_frames: Callable[[str], float],
    ):
        """`estimated_frames`: see `TextToSpeech`."""
        self._stream, self.slots, self._constants = stream, stream.batch, constants
        self._loop, self._estimated_frames = loop, estimated_frames
        self._utterances: dict[int, Utterance[Decoder, Noise]] = {}  # by slot

    @abstractmethod
    def prepare(self, request: SpeechRequest) -> Fill:
        """See `SlotDecoder`."""

    def _begin(self, slot: int, decoder: Decoder, request: SpeechRequest) -> None:
        """Puts a request in a slot. Its prompt is read next."""
        frames = FrameCollector(decoder, request, self._estimated_frames)
        draw = lambda generator: self._loop.draw(generator, self._constants)
        self._utterances[slot] = Utterance(decoder, request.seed, frames, draw)

    def feed(self, count: int, first: int = 0) -> None:
        utterances = self._from(count, first)
        decoders, codes = [each.decoder for each in utterances], [each.codes for each in utterances]
        self._loop.step(self._view(count, first), decoders, np.stack(codes))

    def decode(self, count: int, first: int = 0) -> None:
        utterances = self._from(count, first)
        decoders, noise = [each.decoder for each in utterances], [each.noise() for each in utterances]
        codes = self._loop.frame(self._view(count, first), decoders, noise)
        for utterance, row in zip(utterances, codes, strict=True):
            utterance.codes = row

    def take(self, slot: int) -> SlotOutput:
        return self._utterances[slot].push(self._loop.end_code)

    def codes(self, slot: int) -> np.ndarray:
        return self._utterances[slot].codes

    def replace_codes(self, slot: int, codes: np.ndarray) -> None:
        self._utterances[slot].codes = codes

    def free(self, slot: int) -> None:
        self._utterances.pop(slot, None)

    def move(self, source: int, target: int) -> None:
        decoder = self._utterances[source].decoder
        decoder.stream = move_states(self._stream, source, target, decoder.position)
        self._utterances[target] = self._utterances.pop(source)

    def _from(self, count: int, first: int) -> list[Utterance[Decoder, Noise]]:
        return [self._utterances[slot] for slot in range(first, first + count)]

    def _view(self, count: int, first: int) -> Stream:
        """The slots `first` to `first + count - 1` of the stream: the first ones, or one alone."""
        return self._stream.slot(first) if first else self._stream.first(count)
