"""Fixed runs of Voxtral-TTS: for verification, traces and the benchmark."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxport.bundle.constants.voxtral_tts import EMPTY_AUDIO, END_AUDIO, FIRST_CODE, VoxtralConstants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.runtime.audio.mel import compare_audio
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families.voxtral_tts.decoder import FRAME_LOOP, VoxtralDecoder, VoxtralPrompt
from voxport.runtime.families.voxtral_tts.task import choose_voice
from voxport.runtime.families.workload import (
    BenchSettings,
    ForcedRun,
    TraceWorkload,
    VerificationWorkload,
    speech_bench,
)
from voxport.runtime.trace import ArraySpec

PROMPT_IDS = 16
SEED = 5  # for the prompt and the noise
TRACED_FRAME = 3  # the frame whose condition is used for the traced velocities
MARKERS = 6  # rows of a prompt besides voice and text


def teacher_forced_run(
    stream: Stream, constants: VoxtralConstants, steps: int, forced: np.ndarray | None = None
) -> ForcedRun:
    """Frames of a fixed prompt.

    With `forced` codes int64 [steps, K] each graph runs all steps before the next one.
    """
    embed = VoxtralDecoder(stream, constants).embed
    embedded = [] if forced is None else [embed(row[None]) for row in forced]
    decoder, noise = _start(stream, constants, steps)
    outputs, frames = [decoder.output], []
    for index in range(steps - 1):
        if forced is None:
            frames.append(decoder.frame_and_values(noise[index]))
        decoder.step(decoder.embed(frames[-1][0]) if forced is None else embedded[index])
        outputs.append(decoder.output)
    frames += [decoder.frame_and_values(noise[index], outputs[index]) for index in range(len(frames), steps)]
    allowed = slice(EMPTY_AUDIO + 1, FIRST_CODE + constants.semantic_codes)
    return ForcedRun(
        np.concatenate([codes for codes, _ in frames]),
        np.concatenate([output.semantic_logits[:, allowed] for output in outputs]),
        np.stack([output.hidden for output in outputs]),
        first=EMPTY_AUDIO + 1,
        values=np.concatenate([values for _, values in frames]),
        value_calls=constants.euler_steps + 1,  # each Euler step, and the step of the backbone
    )


def free_run(stream: Stream, constants: VoxtralConstants, steps: int) -> np.ndarray:
    """Samples float32 [n] of the same prompt, up to END_AUDIO or `steps` frames."""
    decoder, noise = _start(stream, constants, steps)
    codes: list[np.ndarray] = []
    for index in range(steps):
        frame = decoder.frame(noise[index])
        if frame[0, 0] == END_AUDIO:
            break
        codes.append(frame[0])
        decoder.step(decoder.embed(frame))
    return decoder.decode(np.array(codes, dtype=np.int64).reshape(-1, constants.n_codebooks))


def _start(stream: Stream, constants: VoxtralConstants, frames: int) -> tuple[VoxtralDecoder, np.ndarray]:
    """A decoder that has read a fixed prompt without a voice, and fixed noise float32 [frames, 1, K - 1]."""
    generator = np.random.default_rng(SEED)
    text = generator.integers(0, constants.vocab_size, PROMPT_IDS)
    ids = np.concatenate(([constants.bos_id, constants.begin_audio_id], text))
    decoder = VoxtralDecoder(stream, constants)
    noise = generator.standard_normal((frames, 1, constants.n_codebooks - 1), dtype=np.float32)
    decoder.read_ids(ids[ids != constants.audio_id])
    return decoder, noise


VERIFICATION = VerificationWorkload[VoxtralConstants](
    teacher_forced_run,
    free_run,
    lambda found, expected, constants: compare_audio(found, expected, constants.sample_rate),
)


def _inputs(constants: VoxtralConstants) -> dict[str, ArraySpec]:
    """A prompt and noise; optionally codes to feed back, codes for the codec alone, the point of the
    velocities.
    """
    books = constants.n_codebooks
    limits = constants.code_sizes
    return {
        "ids": ArraySpec((None,), (constants.vocab_size,)),
        "voice": ArraySpec((None, constants.dim)),
        "noise": ArraySpec(("frames", books - 1)),
        "codes": ArraySpec(("frames", books), limits, is_optional=True),
        "codec_codes": ArraySpec((1, None, books), limits, is_optional=True),
        "vel_x": ArraySpec((1, books - 1), is_optional=True),
    }


def _run(
    engine: Engine, constants: VoxtralConstants, inputs: Arrays, live: bool, tokenizer_files: Sequence[Path]
) -> Arrays:
    """Given `codes` replace the fed-back codes (teacher forcing).

    `live` has no effect: a frame is always one step.
    """
    decoder = VoxtralDecoder(engine.stream(), constants)
    places = np.flatnonzero(inputs["ids"] == constants.audio_id)
    if len(places) != len(inputs["voice"]):
        raise UsageError(
            f"prompt: {len(places)} [AUDIO] ids for a voice of {len(inputs['voice'])} rows; "
            "expected equal numbers"
        )
    results = {"prefill_hidden": decoder.read_ids(inputs["ids"], inputs["voice"], places)}
    results |= _frames(decoder, inputs["noise"], inputs.get("codes"))
    traced = min(TRACED_FRAME, len(inputs["noise"]) - 1)
    condition = results.pop("condition")[traced]
    results["vel_x"] = inputs.get("vel_x", inputs["noise"][traced : traced + 1])
    for step in range(constants.euler_steps):
        point = {"x": results["vel_x"], "step": np.array([step]), "condition": condition}
        velocity = decoder.stream.run("acoustic_step", point)["velocity"][0]
        results[f"velocity_{step / constants.euler_steps:.4f}"] = velocity
    if "codec_codes" in inputs:
        results["audio"] = VoxtralDecoder(engine.stream(), constants).decode(inputs["codec_codes"][0])[None]
    return results


def _frames(decoder: VoxtralDecoder, noise: np.ndarray, forced: np.ndarray | None) -> Arrays:
    """Frames with noise float32 [frames, K - 1]: codes, and the output of the backbone for each frame."""
    chosen, outputs = [], []
    for index in range(len(noise)):
        outputs.append(decoder.output)
        chosen.append(decoder.frame(noise[index : index + 1]))
        if index + 1 < len(noise):
            decoder.step(decoder.embed(chosen[-1] if forced is None else forced[index : index + 1]))
    return {
        "hidden": np.stack([output.hidden for output in outputs]),
        "semantic_logits": np.concatenate([output.semantic_logits for output in outputs]),
        "codes": np.concatenate(chosen),
        "condition": np.stack([output.condition for output in outputs]),
    }


TRACE = TraceWorkload[VoxtralConstants](_inputs, _run)


def _begin(
    stream: Stream, constants: VoxtralConstants, settings: BenchSettings
) -> tuple[VoxtralDecoder, VoxtralPrompt]:
    """The voice, and random text ids; [BEGIN_AUDIO] replaces all markers."""
    audio, marker = constants.audio_id, constants.begin_audio_id
    ids = np.random.default_rng(0).integers(0, constants.vocab_size, settings.prompt_tokens)
    prompt = VoxtralPrompt(
        np.array([constants.bos_id, marker, *[audio] * len(settings.voice), marker]),
        settings.voice,
        np.array([*np.where(ids == audio, marker, ids), marker, marker]),
    )
    return VoxtralDecoder(stream, constants), prompt


def _voice(bundle: Bundle, constants: VoxtralConstants) -> np.ndarray:
    if bundle.manifest.voices:
        return choose_voice(bundle, None, constants.dim)
    return np.zeros((0, constants.dim), np.float32)


BENCH = speech_bench(FRAME_LOOP, _begin, MARKERS, _voice, ", with the voice's prefix cached")
