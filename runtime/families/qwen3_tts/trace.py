"""The trace of an utterance: every intermediate value of a request, from given noise."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from voxport.bundle.constants.qwen3_tts import Constants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Record, first_fault
from voxport.bundle.qwen_tokenizer import QwenTokenizer
from voxport.runtime.audio.files import PCM16_SCALE
from voxport.runtime.engines.base import Arrays, Engine
from voxport.runtime.families.base import TraceWorkload
from voxport.runtime.families.qwen3_tts.builder import PromptBuilder, Voice
from voxport.runtime.families.qwen3_tts.cloning import encode_reference, speaker_embedding
from voxport.runtime.families.qwen3_tts.decoder import FrameNoise, SpeechDecoder
from voxport.runtime.families.qwen3_tts.prompt import PromptEmbedder, Reference
from voxport.runtime.families.qwen3_tts.sampling import Sampling, sampling_of
from voxport.runtime.families.qwen3_tts.split_stream import standard_stream
from voxport.runtime.sampler import GREEDY, SamplerSettings
from voxport.runtime.speech_request import TextLayout
from voxport.runtime.text.language import AUTO
from voxport.runtime.trace import ArraySpec


class TracedSampling(Record):
    """Settings of a request. `sub_*` are those of the code predictor. Temperature 0 is greedy."""

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    sub_temperature: float
    sub_top_k: int
    sub_top_p: float


class Request(Record):
    """What is traced. `max_new_tokens` counts the code 0 of each frame and the end; the last one of so many
    gives no frame, as in the published package.
    """

    mode: Literal["x_vector", "icl", "speaker", "design"]
    text: str
    language: str = AUTO
    speaker: str | None = None
    instruct: str | None = None
    ref_text: str | None = None
    layout: TextLayout | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=2**16)]
    sampling: TracedSampling | None = None


KINDS = {"x_vector": "base", "icl": "base", "speaker": "custom_voice", "design": "voice_design"}


def _inputs(constants: Constants) -> dict[str, ArraySpec]:
    """A request as JSON; for clones a recording; for sampling the noise; optionally codes for the codec."""
    books = constants.n_codebooks
    others = ("frames", books - 1, constants.other_codes)
    return {
        "request": ArraySpec((), kind="text"),
        "ref_pcm": ArraySpec((None,), kind="pcm", is_optional=True),
        "noise_c0": ArraySpec((None, constants.vocab_size), is_optional=True),
        "noise_cp": ArraySpec(others, is_optional=True),
        "codec_codes": ArraySpec((None, books), constants.code_sizes, is_optional=True),
    }


def _run(
    engine: Engine, constants: Constants, inputs: Arrays, live: bool, tokenizer_files: Sequence[Path]
) -> Arrays:
    """`live` has no effect: a frame is always one step."""
    request = _parse(str(inputs["request"]), constants)
    tokenizer, stream = QwenTokenizer(tokenizer_files), standard_stream(engine.stream(), constants)
    builder = PromptBuilder(tokenizer, constants)
    results, voice = _voice(engine, constants, builder, request, inputs)
    prompt = builder.build(
        request.text,
        voice,
        request.language,
        request.instruct,
        request.layout,
    )
    rows = PromptEmbedder(stream, constants).rows(prompt)
    results["prefill"] = rows.prefill
    results["trailing"] = rows.trailing if len(rows.trailing) else rows.padding[None]
    decoder = SpeechDecoder(stream, constants, _sampling(request, constants))
    decoder.start(rows)
    results["hidden"], codes = _frames(decoder, request, inputs)
    results["codes"] = codes
    results["audio"] = _audio(decoder, codes, voice.reference)
    if "codec_codes" in inputs:
        codec_decoder = SpeechDecoder(standard_stream(engine.stream(), constants), constants)
        results["codec_audio"] = codec_decoder.decode(inputs["codec_codes"])
    return results


def _parse(text: str, constants: Constants) -> Request:
    """Raises UsageError that names the wrong field."""
    try:
        request = Request.model_validate(json.loads(text))
    except ValidationError as error:
        raise UsageError(f"request: {first_fault(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"request: not JSON ({error})") from None
    if KINDS[request.mode] != constants.kind:
        raise UsageError(
            f"request: mode {request.mode} needs a model of kind {KINDS[request.mode]}, this is "
            f"{constants.kind}"
        )
    if (request.mode == "icl") != (request.ref_text is not None):
        needed = "mode icl needs ref_text, the transcript of the recording"
        raise UsageError(f"request: {needed if request.mode == 'icl' else 'ref_text is for mode icl only'}")
    return request


def _sampling(request: Request, constants: Constants) -> Sampling:
    """Raises UsageError that names a wrong setting."""
    found, penalty = request.sampling, constants.sampling_defaults.repetition_penalty
    if found is None:
        return Sampling(SamplerSettings(repetition_penalty=penalty), GREEDY)
    return sampling_of(constants, found.model_dump())


def _voice(
    engine: Engine, constants: Constants, builder: PromptBuilder, request: Request, inputs: Arrays
) -> tuple[Arrays, Voice]:
    """The voice of a request, and the values that it was made from."""
    if constants.kind != "base":
        return {}, Voice(request.speaker)
    if "ref_pcm" not in inputs:
        raise UsageError(f"request: mode {request.mode} needs the array ref_pcm, int16 at 24 kHz")
    samples, stream = inputs["ref_pcm"].astype(np.float32) / PCM16_SCALE, engine.stream()
    mel, vector = speaker_embedding(stream, constants, samples)
    results, reference = {"mel": mel, "speaker_embedding": vector}, None
    if request.ref_text is not None:
        codes = encode_reference(stream, samples)
        reference = Reference(builder.transcript(request.ref_text, "ref_text"), codes)
        results["ref_codes"] = codes
    return results, Voice(vector, reference)


def _frames(decoder: SpeechDecoder, request: Request, inputs: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Hidden values float32 [frames, dim] and codes int64 [frames, K]."""
    hidden, codes = list[np.ndarray](), list[np.ndarray]()
    for index in range(request.max_new_tokens - 1):
        current = decoder.hidden
        found = decoder.frame(_noise(request, inputs, index, decoder.constants))
        if found is None or not decoder.has_room:
            break
        if request.sampling and index >= (rows := len(inputs["noise_cp"])):
            raise UsageError(f"noise_cp: {rows} rows, frame {index} needs another one")
        hidden.append(current)
        codes.append(found)
        decoder.step(found)
    books, dim = decoder.constants.n_codebooks, decoder.constants.dim
    return np.reshape(hidden, (-1, dim)).astype(np.float32), np.reshape(codes, (-1, books)).astype(np.int64)


def _noise(request: Request, inputs: Arrays, index: int, constants: Constants) -> FrameNoise | None:
    if request.sampling is None:
        return None
    for name in ("noise_c0", "noise_cp"):
        if name not in inputs:
            raise UsageError(f"request: sampling needs the array {name}")
    first, others = inputs["noise_c0"], inputs["noise_cp"]
    if index >= len(first):
        raise UsageError(f"noise_c0: {len(first)} rows, frame {index} needs another one")
    # the end needs noise for code 0 only
    shape = (constants.n_codebooks - 1, constants.other_codes)
    return FrameNoise(first[index], others[index] if index < len(others) else np.zeros(shape, np.float32))


def _audio(decoder: SpeechDecoder, codes: np.ndarray, reference: Reference | None) -> np.ndarray:
    """Samples of the codes. A reference is decoded in front of them and cut off, by the published rule."""
    if reference is None:
        return decoder.decode(codes)
    samples: np.ndarray = np.concatenate((decoder.decode(reference.codes), decoder.decode(codes)))
    frames = len(reference.codes)
    return samples[int(frames / max(frames + len(codes), 1) * len(samples)) :]


TRACE = TraceWorkload[Constants](_inputs, _run)
