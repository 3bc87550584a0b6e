"""`TurnDetector`: where the turns of speech in a stream begin and end."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from voxport.runtime.audio.silero import CHUNK, RATE, SpeechProbability
from voxport.runtime.audio.sources import Converter

CHUNK_MS = 1000 * CHUNK // RATE
END_RATIO = 0.7  # of the threshold, below which a chunk of a turn is silent
START_CHUNKS = 2  # of speech that begin a turn: a click is shorter
KEPT_S = 5.0  # audio before a turn that is kept, and the largest prefix
LONG_TURN_S, LONG_TURN_SILENCE_MS = 30.0, 96  # from then on a turn ends at a shorter pause
MAX_TURN_S = 60.0


@dataclass(frozen=True)
class TurnSettings:
    """As `server_vad` of OpenAI's realtime API."""

    threshold: float = 0.5  # probability of speech at which a turn begins
    prefix_padding_ms: int = 300  # before the speech
    silence_duration_ms: int = 500  # that ends a turn
    idle_timeout_ms: int | None = None  # time without speech after which a silent turn is made


@dataclass(frozen=True)
class TurnAudio:
    """Samples of a turn, float32 [n]. Times are from the beginning of the stream."""

    samples: np.ndarray
    start_ms: int | None = None  # if the turn begins with these samples
    end_ms: int | None = None  # if the turn ends with them
    is_silent: bool = False  # a whole turn in which no speech was found


class TurnDetector:
    """Divides one stream into turns, with the samples of each."""

    def __init__(self, settings: TurnSettings, rate: int = RATE, position: int = 0):
        """`rate`: samples per second of the stream. `position`: samples at `RATE` before the first one."""
        self.settings, self.rate, self._model = settings, rate, SpeechProbability()
        self._converter = Converter(rate, RATE)
        self._rest = np.zeros(0, np.float32)  # less than a chunk
        self._kept: deque[np.ndarray] = deque(maxlen=ceil(KEPT_S * RATE / CHUNK))  # since the last turn
        self.position = position  # the end of the last whole chunk
        self._idle_since = position  # the end of the last turn
        self._length = 0  # chunks of the current turn; 0 between turns
        self._run = 0  # consecutive chunks of speech between turns, or of silence in a turn

    @property
    def pending_s(self) -> float:
        """Seconds of audio since the last turn ended."""
        return (self.position + len(self._rest) - self._idle_since) / RATE

    def feed(self, samples: np.ndarray) -> list[TurnAudio]:
        """Takes samples float32 [n] of any length. Returns the audio of turns, at `RATE`."""
        return self._divided(self._converter.feed(samples))

    def _divided(self, samples: np.ndarray) -> list[TurnAudio]:
        samples = np.concatenate((self._rest, samples))
        whole = len(samples) // CHUNK * CHUNK
        self._rest = samples[whole:]
        if not whole:
            return []
        chunks, found = samples[:whole].reshape(-1, CHUNK), self._model.feed(samples[:whole])
        pieces = (self._chunk(chunk, float(speech)) for chunk, speech in zip(chunks, found, strict=True))
        return [piece for piece in pieces if piece]

    def end_turn(self) -> list[TurnAudio]:
        """Ends the current turn, or makes one of the audio since the last turn."""
        pieces = self._divided(self._converter.finish())
        self._converter = Converter(self.rate, RATE)
        if pieces and pieces[-1].end_ms is not None:
            return pieces
        samples = np.concatenate((*self._kept, self._rest))
        start = None if self._length else self._milliseconds(self.position + len(self._rest) - len(samples))
        self.clear()
        last = TurnAudio(samples, start, self._milliseconds(self.position), is_silent=start is not None)
        return [*pieces, last]

    def clear(self) -> None:
        """Discards the current turn and the audio since the last one."""
        self.position, self._rest = self.position + len(self._rest), self._rest[:0]
        self._converter = Converter(self.rate, RATE)
        self._reset()

    def _reset(self) -> None:
        self._length, self._run, self._idle_since = 0, 0, self.position
        self._kept.clear()

    def _chunk(self, chunk: np.ndarray, speech: float) -> TurnAudio | None:
        self.position += CHUNK
        if self._length:
            return self._in_turn(chunk, speech)
        self._kept.append(chunk)
        self._run = self._run + 1 if speech >= self.settings.threshold else 0
        if self._run == START_CHUNKS:
            count = START_CHUNKS + ceil(self.settings.prefix_padding_ms / CHUNK_MS)
            samples = np.concatenate(list(self._kept)[-count:])
            self._kept.clear()
            self._length, self._run = len(samples) // CHUNK, 0
            return TurnAudio(samples, start_ms=self._milliseconds(self.position - len(samples)))
        timeout = self.settings.idle_timeout_ms
        if timeout and not self._run and self._milliseconds(self.position - self._idle_since) >= timeout:
            silence = self._milliseconds(self._idle_since), self._milliseconds(self.position)
            samples = np.concatenate(self._kept)
            self._reset()
            return TurnAudio(samples, *silence, is_silent=True)
        return None

    def _in_turn(self, chunk: np.ndarray, speech: float) -> TurnAudio:
        self._length += 1
        self._run = self._run + 1 if speech < END_RATIO * self.settings.threshold else 0
        seconds, silence = self._length * CHUNK / RATE, self.settings.silence_duration_ms
        if seconds >= LONG_TURN_S:
            silence = min(silence, LONG_TURN_SILENCE_MS)
        if self._run < max(1, ceil(silence / CHUNK_MS)) and seconds < MAX_TURN_S:
            return TurnAudio(chunk)
        self._reset()
        return TurnAudio(chunk, end_ms=self._milliseconds(self.position))

    def _milliseconds(self, samples: int) -> int:
        return 1000 * samples // RATE


def turns_of(
    blocks: Iterable[np.ndarray], settings: TurnSettings
) -> Iterator[tuple[float, Iterator[np.ndarray]]]:
    """The turns of a stream in blocks float32 [n] at `RATE`: the second at which each begins, and its blocks.

    Read the blocks of a turn before the next turn.
    """
    detector = TurnDetector(settings)
    pieces = (piece for block in blocks for piece in detector.feed(block))
    for first in pieces:
        assert first.start_ms is not None
        yield first.start_ms / 1000, _rest_of_turn(first, pieces)


def _rest_of_turn(piece: TurnAudio, pieces: Iterator[TurnAudio]) -> Iterator[np.ndarray]:
    yield piece.samples
    while piece.end_ms is None and (following := next(pieces, None)):
        piece = following
        yield piece.samples
