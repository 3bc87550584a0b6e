"""Fixed runs of Qwen3-TTS: for verification, traces and the benchmark. Checks of the choices that graphs
make themselves.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from voxport.bundle.constants.qwen3_tts import QwenConstants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Record, first_fault
from voxport.bundle.qwen_tokenizer import QwenTokenizer
from voxport.runtime.audio.files import PCM16_SCALE
from voxport.runtime.audio.mel import compare_audio
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families.qwen3_tts.cloning import SPEECH_ENCODER, encode_reference, speaker_embedding
from voxport.runtime.families.qwen3_tts.decoder import (
    END,
    FRAME_LOOP,
    FrameNoise,
    QwenDecoder,
    Sampling,
    draw_noise,
    sampling_of,
)
from voxport.runtime.families.qwen3_tts.prompt import (
    PromptBuilder,
    PromptEmbedder,
    PromptRows,
    QwenPrompt,
    Reference,
    Voice,
)
from voxport.runtime.families.qwen3_tts.split_stream import standard_stream
from voxport.runtime.families.workload import (
    BenchSettings,
    ChoiceResult,
    ForcedRun,
    Rollout,
    TraceWorkload,
    VerificationWorkload,
    speech_bench,
)
from voxport.runtime.sampler import GREEDY, SamplerSettings, may_be_drawn
from voxport.runtime.speech_request import TextLayout
from voxport.runtime.text.languages import AUTO
from voxport.runtime.trace import ArraySpec

PROMPT_IDS = 16
DRAWN_FRAMES = 4  # per setting
SETTINGS = (SamplerSettings(0.9, 50), SamplerSettings(0.7, 20, 0.8), SamplerSettings(1.2, 0, 0.9))
ENCODED_FRAMES = 12
FIXED_ROWS = 12  # in a prompt besides text


def teacher_forced_run(
    stream: Stream, constants: QwenConstants, steps: int, forced: np.ndarray | None = None
) -> ForcedRun:
    """Frames of a fixed prompt, each code the one with the largest logit.

    With `forced` codes int64 [steps, K] the predictor runs after all steps of the talker.
    """
    decoder = _start(stream, constants)
    hidden, logits, others = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    codes = np.zeros((steps, constants.n_codebooks), np.int64)
    for index in range(steps):
        hidden.append(decoder.hidden)
        logits.append(decoder.logits[: constants.first_codes])
        codes[index, 0] = logits[-1].argmax()
        decoder.force(int(codes[index, 0]))
        if forced is None:
            codes[index], found = decoder.predict(int(codes[index, 0]))
            others.append(found)
        if index + 1 < steps:
            decoder.step(codes[index] if forced is None else forced[index])
    for index in range(steps if forced is not None else 0):
        assert forced is not None
        decoder.hidden = hidden[index]
        _, found = decoder.predict(int(forced[index, 0]), others=forced[index, 1:])
        others.append(found)
        codes[index, 1:] = found.argmax(axis=-1)
    return ForcedRun(codes, np.stack(logits), np.stack(hidden), other_logits=np.stack(others))


def free_run(stream: Stream, constants: QwenConstants, steps: int) -> np.ndarray:
    """Samples float32 [n] of the same prompt with the sampling of the checkpoint, up to the end or `steps`
    frames.
    """
    decoder, generator = _start(stream, constants), np.random.default_rng(6)
    codes: list[np.ndarray] = []
    for _ in range(steps):
        noise = draw_noise(generator, constants)
        code = decoder.first_code(noise)
        if code == END:
            break
        codes.append(decoder.predict(code, noise)[0])
        decoder.step(codes[-1])
    return decoder.decode(np.array(codes, dtype=np.int64).reshape(-1, constants.n_codebooks))


def rollout(stream: Stream, constants: QwenConstants, frames: int) -> Rollout:
    """As `free_run`, without the end."""
    decoder, generator = _start(stream, constants), np.random.default_rng(7)
    codes = np.zeros((frames, constants.n_codebooks), np.int64)
    for index in range(frames):
        noise = draw_noise(generator, constants)
        codes[index], _ = decoder.predict(decoder.first_code(noise, may_end=False), noise)
        if index + 1 < frames:
            decoder.step(codes[index])
    return Rollout(codes, decoder.decode(codes))


def check_choices(
    found: Stream, expected: Stream, constants: QwenConstants, bar: float
) -> Iterable[ChoiceResult]:
    """The codes that the predictor draws follow from its own logits. The codes of a recording are equal but
    if two entries are about equally near.
    """
    yield _check_drawn(standard_stream(found, constants), constants, bar)
    if SPEECH_ENCODER in found.signatures:
        yield _check_encoded(found, expected, bar)


def _check_drawn(stream: Stream, constants: QwenConstants, bar: float) -> ChoiceResult:
    generator, wrong, count = np.random.default_rng(8), 0, 0
    for settings in SETTINGS:
        for _ in range(DRAWN_FRAMES):
            noise = draw_noise(generator, constants).others
            top_k = min(settings.top_k or constants.other_codes, constants.other_codes)
            codes = np.full((1, constants.n_codebooks), -1)
            codes[0, 0] = generator.integers(constants.first_codes)
            inputs = {
                "hidden": generator.standard_normal((1, 1, constants.dim), dtype=np.float32),
                "codes": codes,
                "noise": noise[None],
                "temperature": np.array([settings.temperature], np.float32),
                "top_k": np.array([top_k]),
                "top_p": np.array([settings.top_p], np.float32),
            }
            outputs = stream.run("code_predictor", inputs)
            for chosen, logits, row in zip(
                outputs["chosen"][0, 1:], outputs["logits"][0], noise, strict=True
            ):
                wrong += not may_be_drawn(int(chosen), logits, row, settings, bar)
                count += 1
    return ChoiceResult("drawn codes", wrong == 0, f"{count - wrong} of {count} follow from the logits")


def _check_encoded(found: Stream, expected: Stream, bar: float) -> ChoiceResult:
    """A code may differ if its margin is within `bar` of the largest one. Codes behind it then differ."""
    size = found.signatures[SPEECH_ENCODER].inputs[0].shape[-1]
    assert isinstance(size, int)
    audio = 0.1 * np.random.default_rng(9).standard_normal((1, ENCODED_FRAMES, size), dtype=np.float32)
    inputs = {"audio": audio, "length": np.array([audio.size - size // 3])}
    outputs, reference = (stream.run(SPEECH_ENCODER, inputs) for stream in (found, expected))
    equal = outputs["codes"][0] == reference["codes"][0]
    near = reference["margins"][0] <= bar * reference["margins"].max()
    # the first book and the others are two quantisers
    affected = np.concatenate((near[:, :1], np.logical_or.accumulate(near[:, 1:], axis=1)), axis=1)
    detail = f"{int(equal.sum())} of {equal.size} equal, {int(affected.sum())} behind a near choice"
    return ChoiceResult("codes of a recording", bool((equal | affected).all()), detail)


def _start(stream: Stream, constants: QwenConstants) -> QwenDecoder:
    """A decoder that has read a fixed prompt without a speaker."""
    stream = standard_stream(stream, constants)
    ids = np.random.default_rng(5).integers(0, constants.text_vocab_size, PROMPT_IDS)
    rows = PromptEmbedder(stream, constants).rows(QwenPrompt(ids, newline=int(ids[0]), streaming=True))
    decoder = QwenDecoder(stream, constants)
    decoder.start(rows)
    return decoder


VERIFICATION = VerificationWorkload[QwenConstants](
    teacher_forced_run,
    free_run,
    lambda found, expected, constants: compare_audio(found, expected, constants.sample_rate),
    check_choices=check_choices,
    rollout=rollout,
)


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
    sampling: dict[str, float] | None = None  # `sub_*` are of the code predictor; temperature 0 is greedy


KINDS = {"x_vector": "base", "icl": "base", "speaker": "custom_voice", "design": "voice_design"}


def _inputs(constants: QwenConstants) -> dict[str, ArraySpec]:
    """A request as JSON; for clones a recording; for sampling the noise; optionally codes to feed back, and
    codes for the codec alone.
    """
    books = constants.n_codebooks
    others = ("frames", books - 1, constants.other_codes)
    return {
        "request": ArraySpec((), kind="text"),
        "ref_pcm": ArraySpec((None,), kind="pcm", is_optional=True),
        "noise_c0": ArraySpec((None, constants.vocab_size), is_optional=True),
        "noise_cp": ArraySpec(others, is_optional=True),
        "codes": ArraySpec((None, books), constants.code_sizes, is_optional=True),
        "codec_codes": ArraySpec((None, books), constants.code_sizes, is_optional=True),
    }


def _run(
    engine: Engine, constants: QwenConstants, inputs: Arrays, live: bool, tokenizer_files: Sequence[Path]
) -> Arrays:
    """`live` has no effect: a frame is always one step."""
    request = _parse(str(inputs["request"]), constants)
    tokenizer, stream = QwenTokenizer(tokenizer_files), standard_stream(engine.stream(), constants)
    builder = PromptBuilder(tokenizer, constants)
    results, voice = _voice(engine, constants, builder, request, inputs)
    prompt = builder.build(request.text, voice, request.language, request.instruct, request.layout)
    rows = PromptEmbedder(stream, constants).rows(prompt)
    results["prefill"] = rows.prefill
    results["trailing"] = rows.trailing if len(rows.trailing) else rows.padding[None]
    decoder = QwenDecoder(stream, constants, _sampling(request, constants))
    decoder.start(rows)
    results["hidden"], codes = _frames(decoder, request, inputs)
    results["codes"] = codes
    results["audio"] = _audio(decoder, inputs.get("codes", codes), voice.reference)
    if "codec_codes" in inputs:
        codec_decoder = QwenDecoder(standard_stream(engine.stream(), constants), constants)
        results["codec_audio"] = codec_decoder.decode(inputs["codec_codes"])
    return results


def _parse(text: str, constants: QwenConstants) -> Request:
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


def _sampling(request: Request, constants: QwenConstants) -> Sampling:
    """Raises UsageError that names a wrong setting."""
    found, penalty = request.sampling, constants.sampling_defaults.repetition_penalty
    if found is None:
        return Sampling(SamplerSettings(repetition_penalty=penalty), GREEDY)
    return sampling_of(constants, found)


def _voice(
    engine: Engine, constants: QwenConstants, builder: PromptBuilder, request: Request, inputs: Arrays
) -> tuple[Arrays, Voice]:
    """The voice of a request, and the values that it was made from."""
    if constants.kind != "base":
        return {}, Voice(request.speaker)
    if "ref_pcm" not in inputs:
        raise UsageError(f"request: mode {request.mode} needs the array ref_pcm, int16 at 24 kHz")
    samples, stream = inputs["ref_pcm"].astype(np.float32) / PCM16_SCALE, engine.stream()
    mel, vector = speaker_embedding(stream, samples)
    results, reference = {"mel": mel, "speaker_embedding": vector}, None
    if request.ref_text is not None:
        codes = encode_reference(stream, samples)
        reference = Reference(builder.transcript(request.ref_text, "ref_text"), codes)
        results["ref_codes"] = codes
    return results, Voice(vector, reference)


def _frames(decoder: QwenDecoder, request: Request, inputs: Arrays) -> tuple[np.ndarray, np.ndarray]:
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
        decoder.step(inputs["codes"][index] if "codes" in inputs else found)
    books, dim = decoder.constants.n_codebooks, decoder.constants.dim
    return np.reshape(hidden, (-1, dim)).astype(np.float32), np.reshape(codes, (-1, books)).astype(np.int64)


def _noise(request: Request, inputs: Arrays, index: int, constants: QwenConstants) -> FrameNoise | None:
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


def _audio(decoder: QwenDecoder, codes: np.ndarray, reference: Reference | None) -> np.ndarray:
    """Samples of the codes. A reference is decoded in front of them and cut off, by the published rule."""
    if reference is None:
        return decoder.decode(codes)
    samples: np.ndarray = np.concatenate((decoder.decode(reference.codes), decoder.decode(codes)))
    frames = len(reference.codes)
    return samples[int(frames / max(frames + len(codes), 1) * len(samples)) :]


TRACE = TraceWorkload[QwenConstants](_inputs, _run)


def _begin(
    stream: Stream, constants: QwenConstants, settings: BenchSettings
) -> tuple[QwenDecoder, PromptRows]:
    ids = np.random.default_rng(0).integers(0, constants.text_vocab_size, settings.prompt_tokens)
    stream = standard_stream(stream, constants)
    rows = PromptEmbedder(stream, constants).rows(QwenPrompt(ids, newline=int(ids[0])))
    return QwenDecoder(stream, constants), rows


BENCH = speech_bench(FRAME_LOOP, _begin, FIXED_ROWS)
