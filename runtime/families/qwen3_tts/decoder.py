"""Utterances from prompt rows to codes and samples, on the streams of any engine."""

from dataclasses import dataclass

import numpy as np

from bundle.errors import UsageError
from runtime.engines.base import Stream
from runtime.families.qwen3_tts.constants import Constants
from runtime.families.qwen3_tts.prompt import PromptEmbedder, PromptRows
from runtime.sampler import GREEDY, SamplerSettings, sample

LEAST_FRAMES = 2  # before which the model may not end, in the published code
GREEDY_FIRST = SamplerSettings(repetition_penalty=1.05)


@dataclass(frozen=True)
class Sampling:
    """How the codes of a frame are drawn: the first of them, and the others, which have no penalty."""

    first: SamplerSettings = GREEDY_FIRST
    others: SamplerSettings = GREEDY


@dataclass(frozen=True)
class FrameNoise:
    """Gumbel noise of a frame: `first` float32 [V] and `others` float32 [K - 1, codes]."""

    first: np.ndarray
    others: np.ndarray


class SpeechDecoder:
    """Holds the positions of one utterance in the talker and the codec, and the output of the last step.

    `hidden` float32 [dim] and `logits` float32 [V] are those from which the next frame is drawn.
    """

    hidden: np.ndarray
    logits: np.ndarray

    def __init__(self, stream: Stream, constants: Constants, sampling: Sampling | None = None):
        self._stream, self._constants, self._sampling = stream, constants, sampling or Sampling()
        self._embedder = PromptEmbedder(stream, constants)
        self._position = self._decoded = 0
        self._first_codes: list[int] = []
        self._allowed = [*range(constants.first_codes), constants.codec_eos_token_id]

    def start(self, rows: PromptRows) -> None:
        """Reads a prompt. Raises UsageError where it does not fit the cache."""
        count, capacity = len(rows.prefill), self._stream.capacity("prefill")
        if count >= capacity:
            raise UsageError(
                f"text: its prompt of {count} rows leaves no room in a cache of {capacity}; "
                "shorten the text or export with a larger cache length"
            )
        self._rows, self._position = rows, count
        inputs = {"embeddings": rows.prefill[None], "position": np.array([0])}
        self._keep(self._stream.run("prefill", inputs))

    @property
    def has_room(self) -> bool:
        """Whether the cache holds another step."""
        return self._position < self._stream.capacity("decode_step")

    def frame(self, noise: FrameNoise | None = None) -> np.ndarray | None:
        """Draws the codes int64 [K] of the next frame; None where the model ends the speech.

        Noise is needed unless both samplers are greedy.
        """
        constants, first = self._constants, self._sampling.first
        logits = np.full_like(self.logits, -np.inf)
        logits[self._allowed] = self.logits[self._allowed]
        if len(self._first_codes) < LEAST_FRAMES:
            logits[constants.codec_eos_token_id] = -np.inf
        previous = [np.array(self._first_codes, np.int64)]
        code = int(sample(logits[None], first, None if noise is None else noise.first[None], previous)[0])
        if code == constants.codec_eos_token_id:
            return None
        self._first_codes.append(code)
        return self.predict(code, noise)[0]

    def predict(
        self, code: int, noise: FrameNoise | None = None, others: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The codes int64 [K] of a frame from its first one, and their logits float32 [K - 1, codes].

        `others` int64 [K - 1] replace the codes that are drawn.
        """
        constants, settings = self._constants, self._sampling.others
        codes = np.full((1, constants.n_codebooks), -1)
        codes[0, 0] = code
        if others is not None:
            codes[0, 1:] = others
        is_greedy = settings.temperature == 0 or noise is None
        shape = (1, constants.n_codebooks - 1, constants.other_codes)
        outputs = self._stream.run(
            "code_predictor",
            {
                "hidden": self.hidden[None, None],
                "codes": codes,
                "noise": np.zeros(shape, np.float32) if is_greedy or noise is None else noise.others[None],
                "temperature": np.array([1 if is_greedy else settings.temperature], np.float32),
                "top_k": np.array([settings.top_k or constants.other_codes]),
                "top_p": np.array([settings.top_p], np.float32),
            },
        )
        return outputs["chosen"][0], outputs["logits"][0]

    def step(self, codes: np.ndarray) -> np.ndarray:
        """Feeds a frame int64 [K], and the text that belongs to it. Returns what was fed, float32 [dim]."""
        frame = len(self._first_codes) - 1
        text = self._rows.trailing[frame] if frame < len(self._rows.trailing) else self._rows.padding
        fed = self._embedder.frames(codes[None])[0] + text
        inputs = {"embeddings": fed[None, None], "position": np.array([self._position])}
        self._position += 1
        self._keep(self._stream.run("decode_step", inputs))
        return np.asarray(fed)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [T, K] of the next frames -> samples float32 [T * samples_per_frame]."""
        most = self._stream.signatures["codec_step"].dims.get("T", (1, 1))[1]
        pieces = [np.zeros(0, np.float32)]
        for start in range(0, len(codes), most):
            part = codes[None, start : start + most]
            inputs = {"codes": part, "position": np.array([self._decoded])}
            pieces.append(self._stream.run("codec_step", inputs)["audio"][0])
            self._decoded += part.shape[1]
        return np.concatenate(pieces)

    def _keep(self, outputs: dict[str, np.ndarray]) -> None:
        self.hidden, self.logits = outputs["hidden"][0, -1], outputs["logits"][0]
