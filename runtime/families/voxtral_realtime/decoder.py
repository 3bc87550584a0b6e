"""Audio samples to audio embeddings and to tokens, one per 80 ms, on the streams of any engine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from bundle.bounds import (
    MAX_WINDOW_HOPS,
    HopLength,
    MelBins,
    SampleRate,
    SilentTokens,
    TokenSamples,
    WindowSize,
)
from bundle.errors import UsageError, VoxportError
from bundle.manifest import Record
from runtime.audio.mel import LogMel, MelSettings
from runtime.engines.base import Arrays, Stream
from runtime.families.base import Count, Id

ENCODER, LIVE_ENCODER = "audio_encoder", "encode_chunk"  # the second one is in bundles for live streams
Observer = Callable[[str, np.ndarray], None]
# A long stream can stay at [STREAMING_PAD] over speech. Its logit is then up to 6.6 above the next one, in
# silence at least 8.5. Pauses between sentences have up to 165 in a row (vllm, pull request 47615).
BLANK_RUN, PENALTY_PER_BLANK, MOST_PENALTY = 200, 0.5, 7.0


class Constants(Record):
    """`constants` of the manifest.

    A token covers `samples_per_token` samples (80 ms). The prompt covers `left_pad_tokens` of silence and
    the delay; `flush_tokens` of silence follow the audio. `delays` in tokens belong to `delays_ms`. Text
    begins at `first_text_id`.
    """

    sample_rate: SampleRate
    samples_per_token: TokenSamples
    n_mels: MelBins
    hop_length: HopLength
    window_size: WindowSize
    log_mel_least: Annotated[float, Field(allow_inf_nan=False)]
    dim: Count
    vocab_size: Count
    left_pad_tokens: SilentTokens
    flush_tokens: SilentTokens
    bos_id: Id
    eos_id: Id
    pad_id: Id
    word_id: Id
    first_text_id: Id
    delays_ms: tuple[Count, ...] = Field(min_length=1, max_length=32)
    delays: tuple[SilentTokens, ...]

    @model_validator(mode="after")
    def _check_consistency(self) -> "Constants":
        if self.samples_per_token % self.hop_length:
            raise ValueError(
                f"samples_per_token {self.samples_per_token} is not a multiple of hop_length, "
                f"{self.hop_length}"
            )
        if self.window_size > MAX_WINDOW_HOPS * self.hop_length:
            raise ValueError(
                f"window_size {self.window_size}: expected at most {MAX_WINDOW_HOPS} times hop_length, "
                f"{self.hop_length}"
            )
        if len(self.delays) != len(self.delays_ms):
            raise ValueError(f"{len(self.delays)} delays in tokens, expected {len(self.delays_ms)} as in ms")
        return self

    @property
    def mel(self) -> MelSettings:
        return MelSettings(
            self.sample_rate, self.n_mels, self.window_size, self.hop_length, self.log_mel_least
        )

    @property
    def frames_per_token(self) -> int:
        return self.samples_per_token // self.hop_length

    @property
    def seconds_per_token(self) -> float:
        return self.samples_per_token / self.sample_rate

    def prompt_length(self, delay: int) -> int:
        """Positions of the prompt with delay number `delay`: BOS, the silence before the audio, and the
        delay.
        """
        return 1 + self.left_pad_tokens + self.delays[delay]

    def delay_index(self, delay_ms: int | None, live: bool) -> int:
        """Number of a delay in `delays_ms`. Raises UsageError that lists them.

        None is the first for live audio. A recording needs no low delay, so there it is the last.
        """
        if delay_ms is not None and delay_ms not in self.delays_ms:
            raise UsageError(
                f"delay_ms {delay_ms}: this bundle has delays of {', '.join(map(str, self.delays_ms))} ms; "
                "take one of them, or export it with another",
                field="delay_ms",
            )
        if delay_ms is None:
            return 0 if live else len(self.delays_ms) - 1
        return self.delays_ms.index(delay_ms)


@dataclass(frozen=True)
class DecodeOptions:
    """`delay` is the number of one of the bundle's delays.

    `chunk_tokens` are encoded per call of the audio encoder; None is the largest number, 1 has the lowest
    latency. `forced` int64 [n] are fed back instead of the chosen tokens. `blank_penalty` lowers the logit of
    [STREAMING_PAD] in a long run of it.
    """

    delay: int = 0
    chunk_tokens: int | None = None
    forced: np.ndarray | None = None
    blank_penalty: bool = False


class StreamingDecoder:
    """The tokens of one recording or one live stream, by the published schedule.

    The prompt covers the silence before the audio and the delay. After it, each position takes the sum of the
    embedding of 80 ms of audio and that of the previous token, and chooses the token with the largest logit.
    Silence at the end flushes the delayed tokens. EOS does not stop the stream.
    """

    def __init__(
        self,
        stream: Stream,
        constants: Constants,
        options: DecodeOptions = DecodeOptions(),
        observe: Observer = lambda name, values: None,
    ):
        """`observe(name, values)` receives all values of `mel`, `audio_embeds` and `logits`.

        Raises UsageError.
        """
        self._stream, self._constants, self._observe = stream, constants, observe
        self._delay, self._forced = options.delay, options.forced
        self._penalises_blanks, self._blanks = options.blank_penalty, 0  # [STREAMING_PAD] in a row
        self._encoder = StreamingEncoder(stream, constants, options.chunk_tokens, observe)
        self._prompt: list[np.ndarray] = []  # audio embeddings until the prompt is complete
        self.position = 0  # in the decoder's cache
        self._token = constants.pad_id  # the previous one

    def feed(self, samples: np.ndarray) -> Iterator[int]:
        """samples float32 [n] at `sample_rate` -> the tokens that are due.

        Raises UsageError on any other array and on a sample that is not finite.
        """
        for embeddings in self._encoder.feed(samples):
            yield from self._decode(embeddings)

    def finish(self) -> Iterator[int]:
        """The remaining tokens after the end of the audio. Nothing can be fed after it."""
        silence = self._constants.delays[self._delay] + 1 + self._constants.flush_tokens
        for embeddings in self._encoder.finish(silence):
            yield from self._decode(embeddings)

    def _decode(self, embeddings: np.ndarray) -> Iterator[int]:
        """audio embeddings float32 [1, T, dim] -> the tokens of their positions; none within the prompt."""
        for index in range(embeddings.shape[1]):
            logits = self._next_logits(embeddings[:, index : index + 1])
            if logits is not None:
                self._observe("logits", logits)
                yield self._choose(logits)

    def _choose(self, logits: np.ndarray) -> int:
        """logits float32 [1, vocab] -> the token. The next position takes it, or the forced one."""
        pad_id = self._constants.pad_id
        if self._penalises_blanks and self._blanks > BLANK_RUN:
            logits = logits.copy()
            logits[0, pad_id] -= min(MOST_PENALTY, PENALTY_PER_BLANK * (self._blanks - BLANK_RUN))
        token = int(logits[0].argmax())
        self._blanks = self._blanks + 1 if token == pad_id else 0
        index = self.position - self._constants.prompt_length(self._delay)
        self._token = token if self._forced is None else int(self._forced[index])
        return token

    def _next_logits(self, embedding: np.ndarray) -> np.ndarray | None:
        """audio embedding float32 [1, 1, dim] of the next position -> logits [1, vocab]; None within the
        prompt.
        """
        if self.position:
            return self._run("decode_step", [self._token], embedding)["logits"]
        self._prompt.append(embedding)
        if len(self._prompt) < self._constants.prompt_length(self._delay):
            return None
        embeddings, self._prompt = np.concatenate(self._prompt, axis=1), []
        return self._prefill(embeddings)["logits"]

    def _prefill(self, embeddings: np.ndarray) -> Arrays:
        """Runs the prompt: one call for as many rows as it takes, and decode steps for the rest of a longer
        prompt.
        """
        constants = self._constants
        ids = [constants.bos_id] + [constants.pad_id] * (embeddings.shape[1] - 1)
        limit = self._stream.signatures["prefill"].dims["S"][1]
        outputs = self._run("prefill", ids[:limit], embeddings[:, :limit])
        for index in range(limit, len(ids)):
            outputs = self._run("decode_step", ids[index : index + 1], embeddings[:, index : index + 1])
        return outputs

    def _run(self, component: str, ids: list[int], audio: np.ndarray) -> Arrays:
        """Runs the next S positions: S ids, and audio embeddings float32 [1, S, dim]."""
        text = self._stream.run("embed_tokens", {"ids": np.array([ids])})["embeddings"]
        position, delay = np.array([self.position]), np.array([self._delay])
        outputs = self._stream.run(
            component, {"embeddings": audio + text, "position": position, "delay": delay}
        )
        self.position += len(ids)
        return outputs


class StreamingEncoder:
    """Audio embeddings of one recording or one live stream.

    The audio follows `left_pad_tokens` of silence, which are encoded in calls of the largest size. Later
    calls encode `chunk_tokens` each: one for live audio, or as many as a call takes.
    """

    def __init__(
        self,
        stream: Stream,
        constants: Constants,
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
        self._mel = LogMel(constants.mel)
        self._frames = np.zeros((0, constants.n_mels), np.float32)  # not encoded yet
        self._samples = 0  # received so far
        self.position = 0  # tokens encoded so far
        self._add_silence(constants.left_pad_tokens * constants.samples_per_token)

    def feed(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """samples float32 [n] -> the embeddings float32 [1, T, dim] of the encoder calls that are possible.

        Raises UsageError on any other array and on a sample that is not finite.
        """
        self._check(samples)
        self._samples += len(samples)
        self._add_frames(self._mel.feed(samples))
        yield from self._encode(self.chunk_tokens)

    def finish(self, silent_tokens: int) -> Iterator[np.ndarray]:
        """Completes the last token with silence, adds `silent_tokens`, and encodes everything left."""
        size = self._constants.samples_per_token
        self._add_silence(-self._samples % size + silent_tokens * size)
        self._add_frames(self._mel.finish())
        yield from self._encode(self.chunk_tokens)
        yield from self._encode(1)

    def _add_silence(self, samples: int) -> None:
        self._add_frames(self._mel.feed(np.zeros(samples, np.float32)))

    def _add_frames(self, frames: np.ndarray) -> None:
        if len(frames):
            self._observe("mel", frames)
            self._frames = np.concatenate((self._frames, frames))

    def _encode(self, min_tokens: int) -> Iterator[np.ndarray]:
        """Encodes complete tokens while there are at least `min_tokens`."""
        size = self._constants.frames_per_token
        while len(self._frames) >= min_tokens * size:
            is_padding = self.position < self._constants.left_pad_tokens
            limit = self._max_tokens if is_padding else self.chunk_tokens
            yield self._encode_tokens(min(len(self._frames) // size, limit))

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

    def _check(self, samples: np.ndarray) -> None:
        rate = self._constants.sample_rate
        if not isinstance(samples, np.ndarray) or samples.ndim != 1 or samples.dtype.kind != "f":
            is_array = isinstance(samples, np.ndarray | np.generic)
            found = f"{samples.dtype} {list(samples.shape)}" if is_array else type(samples).__name__
            raise UsageError(
                f"audio: a block of {found}, expected a NumPy array of float32 [n] in [-1, 1] at {rate} Hz"
            )
        if not np.isfinite(samples).all():
            at = (self._samples + int(np.argmin(np.isfinite(samples)))) / rate
            raise UsageError(f"audio: the sample at {at:.3f} s is not a finite number; repair the recording")
