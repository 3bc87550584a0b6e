"""Audio samples to audio embeddings, one per 80 ms, on the streams of any engine."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from voxport.bundle.constants.voxtral_realtime import ENCODER, LIVE_ENCODER, RealtimeConstants
from voxport.bundle.errors import UsageError, VoxportError
from voxport.runtime.audio.mel import LogMel, MelSettings
from voxport.runtime.engines.base import Stream
from voxport.runtime.speech_to_text import check_samples

Observer = Callable[[str, np.ndarray], None]


@dataclass(frozen=True)
class EncoderState:
    """State of an encoder outside its stream.

    `frames` are mel frames that are not encoded yet, float32 [n, n_mels]. `position` is the number of encoded
    tokens.
    """

    mel: LogMel
    frames: np.ndarray
    position: int


class StreamingEncoder:
    """Audio embeddings of one recording or one live stream.

    The audio follows `left_pad_tokens` of silence. Tokens of silence alone are encoded first, in calls of the
    largest size. Each later call encodes `chunk_tokens` tokens: one for live audio, or the most of a call.
    """

    def __init__(
        self,
        stream: Stream,
        constants: RealtimeConstants,
        chunk_tokens: int | None = None,
        observe: Observer = lambda name, values: None,
    ):
        """`chunk_tokens` None is the largest number. `observe` receives all `mel` frames and `audio_embeds`.

        Raises UsageError if a call cannot encode `chunk_tokens`.
        """
        self._stream, self._constants, self._observe = stream, constants, observe
        self._max_tokens = stream.signatures[ENCODER].dims["T"][1]
        self.chunk_tokens = chunk_tokens or self._max_tokens
        if self.chunk_tokens > self._max_tokens:
            raise UsageError(
                f"chunk_tokens {chunk_tokens}: one call encodes at most {self._max_tokens} tokens of 80 ms",
                field="chunk_tokens",
            )
        self._mel = LogMel(mel_settings(constants))
        self._frames = np.zeros((0, constants.n_mels), np.float32)  # not encoded yet
        self._samples = 0  # received so far
        self.position = 0  # tokens encoded so far
        self._add_silence(constants.left_pad_tokens * constants.samples_per_token)

    @property
    def state(self) -> EncoderState:
        return EncoderState(copy.copy(self._mel), self._frames, self.position)

    @state.setter
    def state(self, state: EncoderState) -> None:
        self._mel, self._frames, self.position = copy.copy(state.mel), state.frames, state.position

    @property
    def seconds(self) -> float:
        """Seconds of audio so far, without silence."""
        return self._samples / self._constants.sample_rate

    def encode_silence(self) -> Iterator[np.ndarray]:
        """The embeddings float32 [1, T, dim] of the silence in front. Called before the first samples."""
        yield from self._encode(1, self._max_tokens)

    def feed(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """samples float32 [n] -> the embeddings float32 [1, T, dim] of the encoder calls that are possible.

        Raises UsageError on any other array and on a sample that is not finite.
        """
        check_samples(samples, self._constants.sample_rate, self._samples)
        self._samples += len(samples)
        self._add_frames(self._mel.feed(samples))
        yield from self._encode(self.chunk_tokens, self.chunk_tokens)

    def finish(self, silent_tokens: int) -> Iterator[np.ndarray]:
        """Completes the last token with silence, adds `silent_tokens`, and encodes everything left."""
        size = self._constants.samples_per_token
        self._add_silence(-self._samples % size + silent_tokens * size)
        self._add_frames(self._mel.finish())
        yield from self._encode(1, self.chunk_tokens)

    def _add_silence(self, samples: int) -> None:
        self._add_frames(self._mel.feed(np.zeros(samples, np.float32)))

    def _add_frames(self, frames: np.ndarray) -> None:
        if len(frames):
            self._observe("mel", frames)
            self._frames = np.concatenate((self._frames, frames))

    def _encode(self, min_tokens: int, max_tokens: int) -> Iterator[np.ndarray]:
        """Encodes complete tokens, at most `max_tokens` per call, while there are at least `min_tokens`."""
        size = self._constants.frames_per_token
        while len(self._frames) >= min_tokens * size:
            yield self._encode_tokens(min(len(self._frames) // size, max_tokens))

    def _encode_tokens(self, count: int) -> np.ndarray:
        """The next embeddings float32 [1, count, dim].

        Raises VoxportError beyond the last position of a stream.
        """
        end, size = self._stream.capacity(ENCODER), self._constants.frames_per_token
        if self.position + count > end:
            hours = end * self._constants.seconds_per_token / 3600
            raise VoxportError(f"a stream ends after {hours:.0f} hours of audio; start a new one")
        mel, self._frames = self._frames[: count * size], self._frames[count * size :]
        encoder = LIVE_ENCODER if count == 1 and LIVE_ENCODER in self._stream.signatures else ENCODER
        inputs = {"mel": mel.reshape(1, count, size, -1), "position": np.array([self.position])}
        embeddings = self._stream.run(encoder, inputs)["embeddings"]
        self.position += count
        self._observe("audio_embeds", embeddings[0])
        return embeddings


def mel_settings(constants: RealtimeConstants) -> MelSettings:
    """The front end of a model."""
    return MelSettings(
        constants.sample_rate,
        constants.n_mels,
        constants.window_size,
        constants.hop_length,
        constants.log_mel_least,
    )
