"""Audio samples to tokens, one per 80 ms, on the streams of any engine."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from voxport.bundle.constants.voxtral_realtime import ENCODER, RealtimeConstants
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.voxtral_realtime.encoder import EncoderState, Observer, StreamingEncoder

# A long stream can stay at [STREAMING_PAD] over speech. Its logit is then up to 6.6 above the next one, in
# silence at least 8.5. Pauses between sentences have up to 165 in a row (vllm, pull request 47615).
BLANK_RUN, PENALTY_PER_BLANK, MAX_PENALTY = 200, 0.5, 7.0


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


@dataclass(frozen=True)
class Silence:
    """What a stream holds after the silence in front of the audio, at one delay: see `StreamingDecoder`.

    `position` is the position of the decoder. The states come from `Stream.save`.
    """

    encoder: EncoderState
    encoder_states: Arrays
    position: int
    states: Arrays


class StreamingDecoder:
    """The tokens of one recording or one live stream, by the published schedule.

    The prompt covers the silence before the audio and the delay. Its rows that depend on silence only are
    read first, so a stream that loads a `Silence` gives the same tokens, bit for bit, as one that reads them.
    After the prompt, each position takes the sum of the embeddings of 80 ms of audio and of the previous
    token, and chooses the token with the largest logit. Silence at the end flushes the delayed tokens. EOS
    does not stop the stream.

    `stream` is the stream of the decoder; it may be a slot of a batch.
    """

    def __init__(
        self,
        stream: Stream,
        constants: RealtimeConstants,
        options: DecodeOptions = DecodeOptions(),
        observe: Observer = lambda name, values: None,
    ):
        """`observe(name, values)` receives all values of `mel`, `audio_embeds` and `logits`.

        Raises UsageError.
        """
        self.stream, self._audio_stream = stream, stream
        self._constants, self._observe = constants, observe
        self.delay, self._forced = options.delay, options.forced
        self._penalises_blanks, self._blanks = options.blank_penalty, 0  # [STREAMING_PAD] in a row
        self._encoder = StreamingEncoder(stream, constants, options.chunk_tokens, observe)
        self._prompt_length = constants.prompt_length(options.delay)
        self._has_begun = False
        self._audio: deque[np.ndarray] = deque()  # embeddings [1, 1, dim] of the next positions
        self.position = 0  # in the decoder's cache
        self._token = constants.pad_id  # the previous one

    def feed(self, samples: np.ndarray) -> Iterator[int]:
        """samples float32 [n] at `sample_rate` -> the tokens that are due.

        Raises UsageError on any other array and on a sample that is not finite.
        """
        self.begin()
        for embeddings in self._encoder.feed(samples):
            yield from self._decode(embeddings)

    def finish(self) -> Iterator[int]:
        """The remaining tokens after the end of the audio. Nothing can be fed after it."""
        self.begin()
        for embeddings in self._encoder.finish(self._trailing_silence):
            yield from self._decode(embeddings)

    def begin(self) -> None:
        """Encodes the silence in front of the audio and reads its rows of the prompt, once."""
        if self._has_begun:
            return
        self._has_begun = True
        if embeddings := list(self._encoder.encode_silence()):
            self._prefill(np.concatenate(embeddings, axis=1))

    @property
    def seconds(self) -> float:
        """Seconds of audio so far."""
        return self._encoder.seconds

    def save_silence(self) -> Silence:
        """For streams of the same delay. Called after `begin`, before any audio."""
        encoder = self._encoder.state
        return Silence(
            encoder,
            self._audio_stream.save(ENCODER, encoder.position),
            self.position,
            self.stream.save("decode_step", self.position),
        )

    def load_silence(self, silence: Silence) -> None:
        """Called in place of `begin`."""
        self._has_begun = True
        self._encoder.state, self.position = silence.encoder, silence.position
        self._audio_stream.load(silence.encoder_states)
        self.stream.load(silence.states)

    # The two parts of `feed` and `finish`, for several streams in one batch: see `LiveSlots`

    def encode_samples(self, samples: np.ndarray) -> None:
        """Encodes samples float32 [n]. Raises UsageError like `feed`."""
        self.begin()
        for embeddings in self._encoder.feed(samples):
            self._add(embeddings)

    def encode_end(self) -> None:
        """Encodes the silence behind the audio. No samples follow."""
        self.begin()
        for embeddings in self._encoder.finish(self._trailing_silence):
            self._add(embeddings)

    @property
    def is_due(self) -> bool:
        """Whether there is audio for another position, or for the rest of the prompt."""
        return len(self._audio) >= max(1, self._prompt_length - self.position)

    @property
    def has_read_prompt(self) -> bool:
        return self.position >= self._prompt_length

    def read_prompt(self) -> int:
        """Reads the rest of the prompt -> the first token. Its audio is encoded."""
        count = self._prompt_length - self.position
        rows = [self._audio.popleft() for _ in range(count)]
        return self.choose(self._prefill(np.concatenate(rows, axis=1))["logits"])

    def next_input(self) -> tuple[int, np.ndarray]:
        """The token and the audio embedding float32 [1, 1, dim] of the next position behind the prompt.

        They stay the next ones until `advance`.
        """
        return self._token, self._audio[0]

    def advance(self, logits: np.ndarray) -> int:
        """Takes the logits [1, vocab] of a decode step -> the token."""
        self.position += 1
        self._audio.popleft()
        return self.choose(logits)

    @property
    def _trailing_silence(self) -> int:
        return self._constants.delays[self.delay] + 1 + self._constants.flush_tokens

    def _add(self, embeddings: np.ndarray) -> None:
        """audio embeddings float32 [1, T, dim] of the next positions."""
        self._audio.extend(np.split(embeddings, embeddings.shape[1], axis=1))

    def _decode(self, embeddings: np.ndarray) -> Iterator[int]:
        """audio embeddings float32 [1, T, dim] -> the tokens of their positions; none within the prompt."""
        self._add(embeddings)
        while self.is_due:
            if not self.has_read_prompt:
                yield self.read_prompt()
                continue
            token, embedding = self._token, self._audio.popleft()
            yield self.choose(self._run("decode_step", [token], embedding)["logits"])

    def choose(self, logits: np.ndarray) -> int:
        """logits float32 [1, vocab] -> the token. The next position takes it, or the forced one."""
        self._observe("logits", logits)
        pad_id = self._constants.pad_id
        if self._penalises_blanks and self._blanks > BLANK_RUN:
            logits = logits.copy()
            logits[0, pad_id] -= min(MAX_PENALTY, PENALTY_PER_BLANK * (self._blanks - BLANK_RUN))
        token = int(logits[0].argmax())
        self._blanks = self._blanks + 1 if token == pad_id else 0
        index = self.position - self._prompt_length
        self._token = token if self._forced is None else int(self._forced[index])
        return token

    def _prefill(self, embeddings: np.ndarray) -> Arrays:
        """Reads audio embeddings float32 [1, S, dim] of the next rows of the prompt: one call for as many as
        it takes, and decode steps for the rest of a longer prompt.
        """
        constants, first, count = self._constants, self.position, embeddings.shape[1]
        ids = [constants.pad_id if first + index else constants.bos_id for index in range(count)]
        limit = max(0, self.stream.signatures["prefill"].dims["S"][1] - first)
        outputs: Arrays = {}
        if ids[:limit]:
            outputs = self._run("prefill", ids[:limit], embeddings[:, :limit])
        for index in range(min(limit, count), count):
            outputs = self._run("decode_step", ids[index : index + 1], embeddings[:, index : index + 1])
        return outputs

    def _run(self, component: str, ids: list[int], audio: np.ndarray) -> Arrays:
        """Runs the next S positions: S ids, and audio embeddings float32 [1, S, dim]."""
        text = self.stream.run_rows("embed_tokens", {"ids": np.array([ids])})["embeddings"]
        position, delay = np.array([self.position]), np.array([self.delay])
        outputs = self.stream.run(
            component, {"embeddings": audio + text, "position": position, "delay": delay}
        )
        self.position += len(ids)
        return outputs
