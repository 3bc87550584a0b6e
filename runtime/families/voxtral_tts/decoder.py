"""`VoxtralDecoder`: the frames of an utterance, and of all slots of a batch in one call."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxport.bundle.constants.voxtral_tts import EMPTY_AUDIO, END_AUDIO, FIRST_CODE, VoxtralConstants
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.speech_decoder import FrameLoop, SpeechDecoder, check_room

VOICE_START = 2  # position of the first voice row: behind [BOS] and [BEGIN_AUDIO]
BATCHED = ("embed_codes", "decode_step", "acoustic_step")  # components that one call runs for all slots


@dataclass(frozen=True)
class VoxtralPrompt:
    """`prefix` int64 [V] has an [AUDIO] id for each row of `voice` float32 [N, dim]; `text` int64 [T] follows
    it.
    """

    prefix: np.ndarray
    voice: np.ndarray
    text: np.ndarray

    @property
    def prefix_rows(self) -> int:
        return len(self.prefix)

    @property
    def rows(self) -> int:
        return len(self.prefix) + len(self.text)


@dataclass(frozen=True)
class StepOutput:
    """Output of the backbone for the next frame."""

    hidden: np.ndarray  # float32 [dim]
    semantic_logits: np.ndarray  # float32 [1, rows]
    condition: np.ndarray  # float32 [1, acoustic dim]


class VoxtralDecoder(SpeechDecoder[VoxtralPrompt]):
    """`output` is the output of the last step."""

    output: StepOutput

    def __init__(self, stream: Stream, constants: VoxtralConstants):
        super().__init__(stream)
        self.constants = constants
        self.may_end = True  # whether the next frame may be END_AUDIO

    def begin(self, prompt: VoxtralPrompt) -> None:
        check_room(prompt.rows + len(self.constants.extra_ids), self.stream.capacity("prefill"))

    def embed_prefix(self, prompt: VoxtralPrompt) -> np.ndarray:
        return self.embed_ids(prompt.prefix, prompt.voice, VOICE_START + np.arange(len(prompt.voice)))

    def embed_text(self, prompt: VoxtralPrompt) -> np.ndarray:
        return self.embed_ids(np.concatenate((prompt.text, np.array(self.constants.extra_ids, np.int64))))

    def read_ids(
        self, ids: np.ndarray, voice: np.ndarray | None = None, voice_positions: np.ndarray | None = None
    ) -> np.ndarray:
        """Reads a prompt of ids int64 [P] in one piece -> hidden float32 [1, P, dim].

        Frame 0 from [AUDIO] is one more row of the prompt: the arithmetic of a separate step. Raises
        UsageError if the prompt does not fit the cache.
        """
        whole = np.concatenate((ids, np.array(self.constants.extra_ids, np.int64)))
        check_room(len(whole), self.stream.capacity("prefill"))
        return self.prefill(self.embed_ids(whole, voice, voice_positions))["hidden"][:, : len(ids)]

    def embed_ids(
        self, ids: np.ndarray, voice: np.ndarray | None = None, voice_positions: np.ndarray | None = None
    ) -> np.ndarray:
        """ids int64 [P] -> float32 [P, dim]. `voice` float32 [N, dim] replaces the rows `voice_positions`."""
        embeddings = self.stream.run_rows("embed_text", {"ids": ids[None]})["embeddings"][0].copy()
        if voice is not None:
            embeddings[voice_positions] = voice
        return np.asarray(embeddings)

    def keep(self, outputs: Arrays) -> None:
        self.output = StepOutput(outputs["hidden"][0, -1], outputs["semantic_logits"], outputs["condition"])

    def advance(self, outputs: Arrays) -> None:
        super().advance(outputs)
        self.may_end = True

    def frame(self, noise: np.ndarray) -> np.ndarray:
        """noise float32 [1, K - 1] -> codes int64 [1, K]; column 0 may be END_AUDIO."""
        return self.frame_and_values(noise)[0]

    def frame_and_values(
        self, noise: np.ndarray, output: StepOutput | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The codes of a frame from `output` (default: the last), and the values float32 [1, K - 1] that
        acoustic codes were rounded from.
        """
        return _frames(self.stream, self.constants, [output or self.output], [self.may_end], noise)

    def embed(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [1, K] of a frame -> float32 [1, 1, dim], the next input of the backbone."""
        return self.stream.run("embed_codes", {"codes": codes})["embeddings"]

    def step(self, embeddings: np.ndarray) -> None:
        """Runs one decode step on a frame's embedding float32 [1, 1, dim]."""
        inputs = {"embeddings": embeddings, "position": np.array([self.position])}
        self.advance(self.stream.run("decode_step", inputs))


def draw_noise(generator: np.random.Generator, constants: VoxtralConstants) -> np.ndarray:
    """Noise of a frame: float32 [1, K - 1]."""
    return generator.standard_normal((1, constants.n_codebooks - 1), dtype=np.float32)


def batched_frame(
    stream: Stream, decoders: Sequence[VoxtralDecoder], noise: Sequence[np.ndarray]
) -> np.ndarray:
    """noise float32 [1, K - 1] of each slot -> codes int64 [slots, K]. Each slot of the stream has a
    decoder.
    """
    outputs, may_end = [decoder.output for decoder in decoders], [decoder.may_end for decoder in decoders]
    return _frames(stream, decoders[0].constants, outputs, may_end, np.concatenate(noise))[0]


def _frames(
    stream: Stream,
    constants: VoxtralConstants,
    outputs: Sequence[StepOutput],
    may_end: Sequence[bool],
    noise: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """noise float32 [B, K - 1] -> codes int64 [B, K] and the values float32 [B, K - 1] that acoustic codes
    were rounded from.
    """
    semantic = [
        semantic_codes(output.semantic_logits, constants, ends)
        for output, ends in zip(outputs, may_end, strict=True)
    ]
    conditions = np.concatenate([output.condition for output in outputs])
    values = acoustic_values(stream, constants, noise, conditions)
    acoustic = quantize_levels(values, constants.acoustic_levels) + FIRST_CODE
    return np.concatenate((np.concatenate(semantic), acoustic), axis=1), values


def batched_step(stream: Stream, decoders: Sequence[VoxtralDecoder], codes: np.ndarray) -> None:
    """Runs one decode step on codes int64 [slots, K]. Each slot of the stream has a decoder."""
    embeddings = stream.run("embed_codes", {"codes": codes})["embeddings"]
    positions = np.array([decoder.position for decoder in decoders])
    outputs = stream.run("decode_step", {"embeddings": embeddings, "position": positions})
    for slot, decoder in enumerate(decoders):
        decoder.advance({name: array[slot : slot + 1] for name, array in outputs.items()})


def semantic_codes(logits: np.ndarray, constants: VoxtralConstants, may_end: bool = True) -> np.ndarray:
    """logits float32 [B, rows] -> codes int64 [B, 1], greedily; with `may_end` a code may be END_AUDIO.

    Rows beyond the codes are padding.
    """
    masked = logits[:, : FIRST_CODE + constants.semantic_codes].copy()
    masked[:, EMPTY_AUDIO if may_end else slice(EMPTY_AUDIO, FIRST_CODE)] = -np.inf
    return np.asarray(masked.argmax(axis=1))[:, None]


def acoustic_values(
    stream: Stream, constants: VoxtralConstants, noise: np.ndarray, condition: np.ndarray
) -> np.ndarray:
    """noise float32 [B, K - 1], condition [B, acoustic dim] -> float32 [B, K - 1], in all Euler steps."""
    x = noise
    for step in range(constants.euler_steps):
        inputs = {"x": x, "step": np.full(len(x), step), "condition": condition}
        x = stream.run("acoustic_step", inputs)["next_x"]
    return x


def quantize_levels(x: np.ndarray, levels: int) -> np.ndarray:
    """round((clamp(x, -1, 1) + 1) / 2 * (levels - 1)), half to even: int64 in 0 ... levels - 1."""
    return np.round((np.clip(x, -1, 1) + 1) / 2 * (levels - 1)).astype(np.int64)


FRAME_LOOP = FrameLoop(draw_noise, batched_frame, batched_step, BATCHED, END_AUDIO, FIRST_CODE)
