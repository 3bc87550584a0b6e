"""`QwenDecoder`: the frames of an utterance, and of all slots of a batch in one call; how codes are drawn."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from pydantic import ValidationError

from voxport.bundle.constants.qwen3_tts import QwenConstants, SamplingConstants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import first_fault
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.qwen3_tts.prompt import PromptEmbedder, PromptRows
from voxport.runtime.sampler import SamplerSettings, gumbel_noise, sample
from voxport.runtime.speech_decoder import FrameLoop, SpeechDecoder

OTHERS, SUB = "others_", "sub_"  # before a setting of the code predictor: in a manifest, in a request
MIN_TEMPERATURE = 1e-3  # above 0; float32 logits divided by a far lower one are infinite
MIN_FRAMES = 2  # before which the model may not end, in the published code
END = -1  # code 0 of a frame with which the model ends the speech
BATCHED = ("embed_codes", "decode_step", "code_predictor")  # components that one call runs for all slots
REFERENCE_FRAMES = 5  # one call decodes so many; other requests wait for it
KEPT_REFERENCES = 8  # whose states are kept; the published codec has 9 MB


@dataclass(frozen=True)
class Sampling:
    """The first code of a frame is drawn with `first`, the others with `others`, which has no penalty."""

    first: SamplerSettings
    others: SamplerSettings


def sampling_of(constants: QwenConstants, changes: Mapping[str, float] | None = None) -> Sampling:
    """The defaults with other values by name: as in `SamplingConstants`, with `sub_` for `others_`.

    Raises UsageError that names a wrong one.
    """
    changes = changes or {}
    names = {OTHERS + name.removeprefix(SUB) if name.startswith(SUB) else name: name for name in changes}
    for key, name in names.items():
        if key not in SamplingConstants.model_fields:
            raise UsageError(
                f"{name} {changes[name]}: no such setting of sampling; expected one of "
                f"{', '.join(SamplingConstants.model_fields)}",
                field=name,
            )
    values = constants.sampling_defaults.model_dump() | {key: changes[name] for key, name in names.items()}
    try:
        found = SamplingConstants.model_validate(values)
    except ValidationError as error:
        key, _, reason = first_fault(error).partition(": ")
        name, reason = names[key], reason.removeprefix("Input ")
        raise UsageError(f"{name} {changes[name]}: {reason}", field=name) from None
    for name, value in changes.items():
        if name.endswith("temperature") and 0 < value < MIN_TEMPERATURE:
            raise UsageError(f"{name} {value}: expected 0, or at least {MIN_TEMPERATURE}", field=name)
    return Sampling(
        SamplerSettings(found.temperature, found.top_k, found.top_p, found.repetition_penalty),
        SamplerSettings(found.others_temperature, found.others_top_k, found.others_top_p),
    )


@dataclass(frozen=True)
class FrameNoise:
    """Gumbel noise of a frame: `first` float32 [V] and `others` float32 [K - 1, codes]."""

    first: np.ndarray
    others: np.ndarray


def draw_noise(generator: np.random.Generator, constants: QwenConstants) -> FrameNoise:
    """Noise of the next frame."""
    others = (constants.n_codebooks - 1, constants.other_codes)
    return FrameNoise(gumbel_noise(generator, (constants.vocab_size,)), gumbel_noise(generator, others))


class QwenDecoder(SpeechDecoder[PromptRows]):
    """`hidden` float32 [dim] and `logits` float32 [V] are the output of the last step."""

    hidden: np.ndarray
    logits: np.ndarray

    def __init__(self, stream: Stream, constants: QwenConstants, sampling: Sampling | None = None):
        """`sampling` None is the default of the model."""
        super().__init__(stream)
        self.constants, self.sampling = constants, sampling or sampling_of(constants)
        self._first_codes: list[int] = []
        self._allowed = [*range(constants.first_codes), constants.codec_eos_token_id]

    def start(self, prompt: PromptRows) -> None:
        """Reads a prompt in one piece. Raises UsageError if it does not fit the cache."""
        self.begin(prompt)
        self.prefill(prompt.prefill)

    def begin(self, prompt: PromptRows) -> None:
        super().begin(prompt)
        self._prompt = prompt

    def embed_prefix(self, prompt: PromptRows) -> np.ndarray:
        return prompt.prefill[: prompt.prefix_rows]

    def embed_text(self, prompt: PromptRows) -> np.ndarray:
        return prompt.prefill[prompt.prefix_rows :]

    def keep(self, outputs: Arrays) -> None:
        self.hidden, self.logits = outputs["hidden"][0, -1], outputs["logits"][0]

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
        text = self._prompt.trailing[index] if index < len(self._prompt.trailing) else self._prompt.padding
        return np.asarray(frame + text)

    def force(self, code: int) -> None:
        """Takes code 0 of the next frame as given."""
        self._first_codes.append(code)

    def replace(self, chosen: int, code: int) -> None:
        """Goes on with another code 0 than the one that `first_code` gave. Either may be END."""
        if chosen != END:
            self._first_codes.pop()
        if code != END:
            self.force(code)

    def save_codec(self) -> Arrays:
        """Copies of the states of the codec, for `load_codec`."""
        return self.stream.save("codec_step", self._decoded)

    def load_codec(self, states: Arrays, frames: int) -> None:
        """Takes the states of the codec behind `frames` frames of another utterance."""
        self.stream.load(states)
        self._decoded = frames


def batched_frame(stream: Stream, decoders: Sequence[QwenDecoder], noise: Sequence[FrameNoise]) -> np.ndarray:
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


def batched_step(stream: Stream, decoders: Sequence[QwenDecoder], codes: np.ndarray) -> None:
    """Runs one decode step on codes int64 [slots, K]. Each slot of the stream has a decoder."""
    frames = stream.run("embed_codes", {"codes": codes[:, None]})["embeddings"]
    fed = [decoder.next_input(frame[0]) for decoder, frame in zip(decoders, frames, strict=True)]
    positions = np.array([decoder.position for decoder in decoders])
    outputs = stream.run("decode_step", {"embeddings": np.stack(fed)[:, None], "position": positions})
    for slot, decoder in enumerate(decoders):
        decoder.advance({name: array[slot : slot + 1] for name, array in outputs.items()})


FRAME_LOOP = FrameLoop(draw_noise, batched_frame, batched_step, BATCHED, END, first_code=0)


class ReferenceStates:
    """States of the codec behind the references that were used last. Thread-safe."""

    def __init__(self) -> None:
        self._states: OrderedDict[bytes, Arrays] = OrderedDict()  # by codes; the last one was used last
        self._lock = Lock()

    def read(self, decoder: QwenDecoder, codes: np.ndarray) -> Iterator[None]:
        """Decodes the codes int64 [F, K] of a reference without using the samples, and yields between calls.

        States that were kept replace the calls.
        """
        key = codes.tobytes()
        with self._lock:
            if (states := self._states.get(key)) is not None:
                self._states.move_to_end(key)
        if states is not None:
            decoder.load_codec(states, len(codes))
            return
        for start in range(0, len(codes), REFERENCE_FRAMES):
            decoder.decode(codes[start : start + REFERENCE_FRAMES])
            yield
        states = decoder.save_codec()
        with self._lock:
            self._states[key] = states
            while len(self._states) > KEPT_REFERENCES:
                self._states.popitem(last=False)
