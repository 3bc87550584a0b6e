"""Audio samples to tokens, one per 80 ms, on the streams of any engine."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runtime.engines.base import Stream
from runtime.engines.states import Arrays
from runtime.families.voxtral_realtime.constants import Constants
from runtime.families.voxtral_realtime.encoder import Observer, StreamingEncoder, ignore_values


@dataclass(frozen=True)
class DecodeOptions:
    """`delay` is the number of one of the bundle's delays.

    `chunk_tokens` are encoded per call of the audio encoder; None is the largest number, 1 has the lowest
    latency. `forced` int64 [n] are fed back instead of the chosen tokens.
    """

    delay: int = 0
    chunk_tokens: int | None = None
    forced: np.ndarray | None = None


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
        observe: Observer = ignore_values,
    ):
        """`observe(name, values)` receives all values of `mel`, `audio_embeds` and `logits`.

        Raises UsageError.
        """
        self._stream, self._constants, self._observe = stream, constants, observe
        self._delay, self._forced = options.delay, options.forced
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
        constants = self._constants
        for embeddings in self._encoder.finish(constants.delays[self._delay] + 1 + constants.flush_tokens):
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
        token = int(logits[0].argmax())
        index = self.position - self._constants.prompt_length(self._delay)
        self._token = token if self._forced is None else int(self._forced[index])
        return token

    def _next_logits(self, embedding: np.ndarray) -> np.ndarray | None:
        """audio embedding float32 [1, 1, dim] of the next position -> logits [1, vocab]; None within the
        prompt.
        """
        length = self._constants.prompt_length(self._delay)
        if self.position:
            return self._run("decode_step", [self._token], embedding)["logits"]
        self._prompt.append(embedding)
        if len(self._prompt) < length:
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
