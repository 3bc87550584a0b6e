"""Utterances from prompt to codes and samples: one per stream, or one per slot of a batched stream.

Works on the streams of any engine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from voxport.bundle.bounds import Codebooks, EulerSteps, SampleRate
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Record
from voxport.runtime.batching import RowLimit
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.base import Count, Id, Values, parse_record
from voxport.runtime.sampler import sample
from voxport.runtime.utterance import FrameLoop, decode_frames, read_pieces

EMPTY_AUDIO, END_AUDIO, FIRST_CODE = 0, 1, 2  # the first two rows of every codebook are special codes
VOICE_START = 2  # position of the first voice row: behind [BOS] and [BEGIN_AUDIO]
BATCHED = ("embed_codes", "decode_step", "acoustic_step")  # components that one call runs for all slots


class Constants(Record):
    """`constants` of the manifest, and the family options that change the frame loop."""

    sample_rate: SampleRate
    samples_per_frame: Count
    dim: Count
    vocab_size: Count
    n_codebooks: Codebooks
    semantic_codes: Count
    acoustic_levels: Annotated[int, Field(ge=2, le=2**16)]
    euler_steps: EulerSteps
    bos_id: Id
    audio_id: Id
    begin_audio_id: Id
    first_frame: Literal["audio_token", "prefill"]

    @property
    def code_sizes(self) -> tuple[int, ...]:
        """Number of values of each code of a frame."""
        acoustic = self.acoustic_levels + FIRST_CODE
        return (self.semantic_codes + FIRST_CODE, *[acoustic] * (self.n_codebooks - 1))

    @property
    def extra_ids(self) -> list[int]:
        """Ids behind the prompt. Frame 0 follows the [AUDIO] token, or the prompt itself."""
        return [self.audio_id] if self.first_frame == "audio_token" else []


def parse_constants(constants: Values, options: Values) -> Constants:
    """Raises IntegrityError that names the constant."""
    return parse_record(Constants, {**constants, "first_frame": options.get("first_frame")})


@dataclass(frozen=True)
class Prompt:
    """`prefix` int64 [V] has an [AUDIO] id for each row of `voice` float32 [N, dim]; `text` int64 [T] follows
    it.
    """

    prefix: np.ndarray
    voice: np.ndarray
    text: np.ndarray

    @cached_property
    def voice_positions(self) -> np.ndarray:
        """Positions in `prefix` whose embeddings are the rows of `voice`: int64 [N]."""
        return np.arange(VOICE_START, VOICE_START + len(self.voice))


def check_room(rows: int, capacity: int) -> None:
    """Raises UsageError if a prompt of `rows` rows leaves no room for a frame in the cache."""
    if rows >= capacity:
        raise UsageError(
            f"text: its prompt of {rows} rows leaves no room in a cache of {capacity}; "
            "shorten the text or export with a larger cache length"
        )


@dataclass(frozen=True)
class StepOutput:
    """Output of the backbone for the next frame."""

    hidden: np.ndarray  # float32 [dim]
    semantic_logits: np.ndarray  # float32 [1, rows]
    condition: np.ndarray  # float32 [1, acoustic dim]


class SpeechDecoder:
    """Holds the positions of one utterance in the backbone and the codec, and the output of the last step."""

    output: StepOutput

    def __init__(self, stream: Stream, constants: Constants):
        self.stream, self.constants = stream, constants
        self.position = 0
        self.may_end = True  # whether the next frame may be END_AUDIO
        self._decoded = 0  # frames

    def read_prefix(self, prompt: Prompt, limit: RowLimit) -> Iterator[None]:
        """Reads the prefix of a prompt, and yields between pieces."""
        yield from read_pieces(self._embed_prefix(prompt), limit, self._prefill)

    def load_prefix(self, prompt: Prompt, rows: Arrays) -> None:
        """Takes the cache rows of the prefix from an earlier utterance of the voice."""
        self.stream.load(rows)
        self.position = len(prompt.prefix)

    def read_text(self, prompt: Prompt, limit: RowLimit) -> Iterator[None]:
        """Reads what follows the prefix of a prompt, and yields between pieces."""
        yield from read_pieces(self._embed(self._extended(prompt.text)), limit, self._prefill)

    def prefill(
        self, ids: np.ndarray, voice: np.ndarray | None = None, voice_positions: np.ndarray | None = None
    ) -> np.ndarray:
        """ids int64 [P] -> hidden float32 [1, P, dim]. These ids end the prompt, so the next frame follows
        them.

        `voice` float32 [N, dim] replaces the embeddings at `voice_positions` int64 [N]. Raises UsageError
        if the prompt does not fit the cache.
        """
        hidden = self._prefill(self._embed(self._extended(ids), voice, voice_positions))
        return hidden[:, : len(ids)]

    def _extended(self, ids: np.ndarray) -> np.ndarray:
        """Frame 0 from [AUDIO] is one more row of the prompt: the arithmetic of a separate step."""
        return np.concatenate((ids, np.array(self.constants.extra_ids, np.int64)))

    def _embed_prefix(self, prompt: Prompt) -> np.ndarray:
        return self._embed(prompt.prefix, prompt.voice, prompt.voice_positions)

    def _embed(
        self, ids: np.ndarray, voice: np.ndarray | None = None, positions: np.ndarray | None = None
    ) -> np.ndarray:
        """ids int64 [P] of the next rows -> float32 [P, dim]. Raises UsageError if they do not fit."""
        check_room(self.position + len(ids), self.stream.capacity("prefill"))
        embeddings = self.stream.run_rows("embed_text", {"ids": ids[None]})["embeddings"][0].copy()
        if voice is not None:
            embeddings[positions] = voice
        return np.asarray(embeddings)

    def _prefill(self, embeddings: np.ndarray) -> np.ndarray:
        """Feeds embeddings float32 [P, dim] from `position` on -> hidden float32 [1, P, dim]."""
        inputs = {"embeddings": embeddings[None], "position": np.array([self.position])}
        outputs = self.stream.run_rows("prefill", inputs)
        self._keep(outputs)
        self.position += len(embeddings)
        return outputs["hidden"]

    def frame(self, noise: np.ndarray, output: StepOutput | None = None) -> np.ndarray:
        """noise float32 [1, K - 1] -> codes int64 [1, K] from `output` (default: the last); column 0 may be
        END_AUDIO.
        """
        return self.frame_and_values(noise, output)[0]

    def frame_and_values(
        self, noise: np.ndarray, output: StepOutput | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The codes of `frame`, and the values float32 [1, K - 1] that acoustic codes were rounded from."""
        output = output or self.output
        values = acoustic_values(self.stream, self.constants, noise, output.condition)
        semantic = semantic_codes(output.semantic_logits, self.constants, self.may_end)
        return np.concatenate((semantic, acoustic_codes(values, self.constants)), axis=1), values

    def embed(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [1, K] of a frame -> float32 [1, 1, dim], the next input of the backbone."""
        return self.stream.run("embed_codes", {"codes": codes})["embeddings"]

    def step(self, embeddings: np.ndarray) -> None:
        """Runs one decode step on a frame's embedding float32 [1, 1, dim]."""
        inputs = {"embeddings": embeddings, "position": np.array([self.position])}
        self.advance(self.stream.run("decode_step", inputs))

    def advance(self, outputs: Arrays) -> None:
        """Takes the outputs of `decode_step` for this utterance."""
        self._keep(outputs)
        self.may_end = True
        self.position += 1

    @property
    def has_room(self) -> bool:
        """Whether the cache holds another step."""
        return self.position < self.stream.capacity("decode_step")

    def velocity(self, x: np.ndarray, step: int, condition: np.ndarray) -> np.ndarray:
        """x float32 [1, K - 1], condition [1, acoustic dim] -> float32 [2, K - 1]: guided and unguided
        velocity.
        """
        inputs = {"x": x, "step": np.array([step]), "condition": condition}
        return np.asarray(self.stream.run("acoustic_step", inputs)["velocity"][0])

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [T, K] of the next frames -> samples float32 [T * samples_per_frame]."""
        samples = decode_frames(self.stream, codes, self._decoded)
        self._decoded += len(codes)
        return samples

    def _keep(self, outputs: Arrays) -> None:
        self.output = StepOutput(outputs["hidden"][0, -1], outputs["semantic_logits"], outputs["condition"])


def draw_noise(generator: np.random.Generator, constants: Constants) -> np.ndarray:
    """Noise of a frame: float32 [1, K - 1]."""
    return generator.standard_normal((1, constants.n_codebooks - 1), dtype=np.float32)


def batched_frame(
    stream: Stream, decoders: Sequence[SpeechDecoder], noise: Sequence[np.ndarray]
) -> np.ndarray:
    """noise float32 [1, K - 1] of each slot -> codes int64 [slots, K]. Each slot of the stream has a
    decoder.
    """
    constants = decoders[0].constants
    conditions = np.concatenate([decoder.output.condition for decoder in decoders])
    semantic = [
        semantic_codes(decoder.output.semantic_logits, constants, decoder.may_end) for decoder in decoders
    ]
    values = acoustic_values(stream, constants, np.concatenate(noise), conditions)
    return np.concatenate((np.concatenate(semantic), acoustic_codes(values, constants)), axis=1)


def batched_step(stream: Stream, decoders: Sequence[SpeechDecoder], codes: np.ndarray) -> None:
    """Runs one decode step on codes int64 [slots, K]. Each slot of the stream has a decoder."""
    embeddings = stream.run("embed_codes", {"codes": codes})["embeddings"]
    positions = np.array([decoder.position for decoder in decoders])
    outputs = stream.run("decode_step", {"embeddings": embeddings, "position": positions})
    for slot, decoder in enumerate(decoders):
        decoder.advance({name: array[slot : slot + 1] for name, array in outputs.items()})


def semantic_codes(logits: np.ndarray, constants: Constants, may_end: bool = True) -> np.ndarray:
    """logits float32 [B, rows] -> codes int64 [B, 1], greedily; with `may_end` a code may be END_AUDIO.

    Rows beyond the codes are padding.
    """
    masked = logits[:, : FIRST_CODE + constants.semantic_codes].copy()
    masked[:, EMPTY_AUDIO if may_end else slice(EMPTY_AUDIO, FIRST_CODE)] = -np.inf
    return sample(masked)[:, None]


def acoustic_values(
    stream: Stream, constants: Constants, noise: np.ndarray, condition: np.ndarray
) -> np.ndarray:
    """noise float32 [B, K - 1], condition [B, acoustic dim] -> float32 [B, K - 1], in all Euler steps."""
    x = noise
    for step in range(constants.euler_steps):
        inputs = {"x": x, "step": np.full(len(x), step), "condition": condition}
        x = stream.run("acoustic_step", inputs)["next_x"]
    return x


def acoustic_codes(values: np.ndarray, constants: Constants) -> np.ndarray:
    """values float32 [B, K - 1] -> codes int64 [B, K - 1]."""
    return quantize_levels(values, constants.acoustic_levels) + FIRST_CODE


def quantize_levels(x: np.ndarray, levels: int) -> np.ndarray:
    """round((clamp(x, -1, 1) + 1) / 2 * (levels - 1)), half to even: int64 in 0 ... levels - 1."""
    return np.round((np.clip(x, -1, 1) + 1) / 2 * (levels - 1)).astype(np.int64)


FRAMES = FrameLoop(draw_noise, batched_frame, batched_step, BATCHED, END_AUDIO, FIRST_CODE)
