"""Utterances from prompt rows to codes and samples: one per stream, or one per slot of a batched stream.

Works on the streams of any engine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.runtime.batching import RowLimit
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.qwen3_tts.constants import Constants, Sampling
from voxport.runtime.families.qwen3_tts.prompt import PromptEmbedder, PromptRows
from voxport.runtime.sampler import gumbel_noise, sample
from voxport.runtime.utterance import FrameLoop, decode_frames, read_pieces

MIN_FRAMES = 2  # before which the model may not end, in the published code
END = -1  # code 0 of a frame with which the model ends the speech
BATCHED = ("embed_codes", "decode_step", "code_predictor")  # components that one call runs for all slots


@dataclass(frozen=True)
class FrameNoise:
    """Gumbel noise of a frame: `first` float32 [V] and `others` float32 [K - 1, codes]."""

    first: np.ndarray
    others: np.ndarray


def draw_noise(generator: np.random.Generator, constants: Constants) -> FrameNoise:
    """Noise of the next frame."""
    others = (constants.n_codebooks - 1, constants.other_codes)
    return FrameNoise(gumbel_noise(generator, (constants.vocab_size,)), gumbel_noise(generator, others))


class SpeechDecoder:
    """Holds the positions of one utterance in the talker and the codec, and the output of the last step.

    `hidden` float32 [dim] and `logits` float32 [V] are those from which the next frame is drawn.
    """

    hidden: np.ndarray
    logits: np.ndarray

    def __init__(self, stream: Stream, constants: Constants, sampling: Sampling | None = None):
        """`sampling` None is the default of the model."""
        self.stream, self.constants = stream, constants
        self.sampling = constants.sampling if sampling is None else sampling
        self.position = 0
        self._decoded = 0  # frames
        self._first_codes: list[int] = []
        self._allowed = [*range(constants.first_codes), constants.codec_eos_token_id]

    def start(self, rows: PromptRows) -> None:
        """Reads a prompt in one piece. Raises UsageError if it does not fit the cache."""
        self._check_room(rows)
        self._prefill(rows.prefill)

    def read_prefix(self, rows: PromptRows, limit: RowLimit) -> Iterator[None]:
        """Reads the fixed part of a prompt, and yields between pieces. Raises UsageError like `start`."""
        self._check_room(rows)
        yield from read_pieces(rows.prefill[: rows.fixed], limit, self._prefill)

    def load_prefix(self, rows: PromptRows, prefix_rows: Arrays) -> None:
        """Takes the cache rows of the fixed part from an earlier prompt. Raises UsageError like `start`."""
        self._check_room(rows)
        self.stream.load(prefix_rows)
        self.position = rows.fixed

    def read_text(self, rows: PromptRows, limit: RowLimit) -> Iterator[None]:
        """Reads what follows the fixed part of a prompt, and yields between pieces."""
        yield from read_pieces(rows.prefill[rows.fixed :], limit, self._prefill)

    def _check_room(self, rows: PromptRows) -> None:
        self._rows = rows
        count, capacity = len(rows.prefill), self.stream.capacity("prefill")
        if count >= capacity:
            raise UsageError(
                f"text: its prompt of {count} rows leaves no room in a cache of {capacity}; "
                "shorten the text or export with a larger cache length"
            )

    def _prefill(self, embeddings: np.ndarray) -> None:
        """Feeds embeddings float32 [P, dim] of the prompt from `position` on."""
        inputs = {"embeddings": embeddings[None], "position": np.array([self.position])}
        self._keep(self.stream.run_rows("prefill", inputs))
        self.position += len(embeddings)

    @property
    def has_room(self) -> bool:
        """Whether the cache holds another step."""
        return self.position < self.stream.capacity("decode_step")

    def first_code(self, noise: FrameNoise | None = None, may_end: bool = True) -> int:
        """Draws and takes code 0 of the next frame; END if the model ends the speech and `may_end`.

        Noise is needed unless the sampling is greedy.
        """
        if (code := self.draw_first_code(noise, may_end)) != END:
            self.force(code)
        return code

    def draw_first_code(self, noise: FrameNoise | None = None, may_end: bool = True) -> int:
        """As `first_code`, but does not take the code: the next call draws it again."""
        constants, settings = self.constants, self.sampling.first
        logits = np.full_like(self.logits, -np.inf)
        logits[self._allowed] = self.logits[self._allowed]
        if len(self._first_codes) < MIN_FRAMES or not may_end:
            logits[constants.codec_eos_token_id] = -np.inf
        previous = [np.array(self._first_codes, np.int64)]
        code = int(sample(logits[None], settings, None if noise is None else noise.first[None], previous)[0])
        return END if code == constants.codec_eos_token_id else code

    def frame(self, noise: FrameNoise | None = None) -> np.ndarray | None:
        """Draws the codes int64 [K] of the next frame; None if the model ends the speech."""
        code = self.first_code(noise)
        return None if code == END else self.predict(code, noise)[0]

    def predictor_inputs(
        self, code: int, noise: FrameNoise | None = None, others: np.ndarray | None = None
    ) -> Arrays:
        """Inputs of `code_predictor`. `others` int64 [K - 1] replace the codes that are drawn."""
        constants, settings = self.constants, self.sampling.others
        codes = np.full((1, constants.n_codebooks), -1)
        codes[0, 0] = code
        if others is not None:
            codes[0, 1:] = others
        draws = settings.temperature > 0 and noise is not None
        shape = (1, constants.n_codebooks - 1, constants.other_codes)
        top_k = settings.top_k if 0 < settings.top_k < constants.other_codes else constants.other_codes
        return {
            "hidden": self.hidden[None, None],
            "codes": codes,
            "noise": noise.others[None] if noise is not None and draws else np.zeros(shape, np.float32),
            "temperature": np.array([settings.temperature if draws else 1], np.float32),
            "top_k": np.array([top_k]),
            "top_p": np.array([settings.top_p], np.float32),
        }

    def predict(
        self, code: int, noise: FrameNoise | None = None, others: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The codes int64 [K] of a frame from its first one, and their logits float32 [K - 1, codes].

        `others` int64 [K - 1] replace the codes that are drawn.
        """
        outputs = self.stream.run("code_predictor", self.predictor_inputs(code, noise, others))
        return outputs["chosen"][0], outputs["logits"][0]

    def step(self, codes: np.ndarray) -> np.ndarray:
        """Feeds a frame int64 [K], and the text that belongs to it. Returns what was fed, float32 [dim]."""
        fed = self.next_input(PromptEmbedder(self.stream, self.constants).frames(codes[None])[0])
        inputs = {"embeddings": fed[None, None], "position": np.array([self.position])}
        self.advance(self.stream.run("decode_step", inputs))
        return fed

    def next_input(self, frame: np.ndarray) -> np.ndarray:
        """The last frame's embedding float32 [dim] and the text that belongs to it, added: float32 [dim]."""
        index = len(self._first_codes) - 1
        text = self._rows.trailing[index] if index < len(self._rows.trailing) else self._rows.padding
        return np.asarray(frame + text)

    def advance(self, outputs: Arrays) -> None:
        """Takes the outputs of `decode_step` for this utterance."""
        self.position += 1
        self._keep(outputs)

    def force(self, code: int) -> None:
        """Takes code 0 of the next frame as given."""
        self._first_codes.append(code)

    def replace(self, chosen: int, code: int) -> None:
        """Goes on with another code 0 than the one that `first_code` gave. Either may be END."""
        if chosen != END:
            self._first_codes.pop()
        if code != END:
            self.force(code)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [T, K] of the next frames -> samples float32 [T * samples_per_frame]."""
        samples = decode_frames(self.stream, codes, self._decoded)
        self._decoded += len(codes)
        return samples

    def save_codec(self) -> Arrays:
        """Copies of the states of the codec, for `load_codec`."""
        return self.stream.save("codec_step", self._decoded)

    def load_codec(self, states: Arrays, frames: int) -> None:
        """Takes the states of the codec behind `frames` frames of another utterance."""
        self.stream.load(states)
        self._decoded = frames

    def _keep(self, outputs: Arrays) -> None:
        self.hidden, self.logits = outputs["hidden"][0, -1], outputs["logits"][0]


def batched_frame(
    stream: Stream, decoders: Sequence[SpeechDecoder], noise: Sequence[FrameNoise]
) -> np.ndarray:
    """Codes int64 [slots, K]; code 0 is END if the model ends the speech. Each slot of the stream has a
    decoder.

    A slot that ends repeats the inputs of another one; its other codes mean nothing. The decoders take the
    codes at the end, so a call that raises can be repeated.
    """
    codes = np.full((stream.batch, decoders[0].constants.n_codebooks), END)
    inputs: dict[int, Arrays] = {}  # by slot, without slots that end
    for slot, (decoder, drawn) in enumerate(zip(decoders, noise, strict=True)):
        if (code := decoder.draw_first_code(drawn)) != END:
            inputs[slot] = decoder.predictor_inputs(code, drawn)
    if inputs:
        filler = next(iter(inputs.values()))
        rows = [inputs.get(slot, filler) for slot in range(stream.batch)]
        batch = {name: np.concatenate([row[name] for row in rows]) for name in filler}
        chosen = stream.run("code_predictor", batch)["chosen"]
        for slot in inputs:
            codes[slot] = chosen[slot]
            decoders[slot].force(int(inputs[slot]["codes"][0, 0]))
    return codes


def batched_step(stream: Stream, decoders: Sequence[SpeechDecoder], codes: np.ndarray) -> None:
    """Runs one decode step on codes int64 [slots, K]. Each slot of the stream has a decoder."""
    frames = stream.run("embed_codes", {"codes": codes[:, None]})["embeddings"]
    fed = [decoder.next_input(frame[0]) for decoder, frame in zip(decoders, frames, strict=True)]
    positions = np.array([decoder.position for decoder in decoders])
    outputs = stream.run("decode_step", {"embeddings": np.stack(fed)[:, None], "position": positions})
    for slot, decoder in enumerate(decoders):
        decoder.advance({name: array[slot : slot + 1] for name, array in outputs.items()})


FRAMES = FrameLoop(draw_noise, batched_frame, batched_step, BATCHED, END, first_code=0)
