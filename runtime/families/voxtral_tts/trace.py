"""The trace of an utterance: every intermediate value from given ids, voice and noise."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxport.bundle.constants.voxtral_tts import Constants
from voxport.bundle.errors import UsageError
from voxport.runtime.engines.base import Arrays, Engine
from voxport.runtime.families.base import TraceWorkload
from voxport.runtime.families.voxtral_tts.decoder import SpeechDecoder
from voxport.runtime.trace import ArraySpec

TRACED_FRAME = 3  # the frame whose condition is used for the traced velocities


def _inputs(constants: Constants) -> dict[str, ArraySpec]:
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
    engine: Engine, constants: Constants, inputs: Arrays, live: bool, tokenizer_files: Sequence[Path]
) -> Arrays:
    """Given `codes` replace the fed-back codes (teacher forcing).

    `live` has no effect: a frame is always one step.
    """
    decoder = SpeechDecoder(engine.stream(), constants)
    places = np.flatnonzero(inputs["ids"] == constants.audio_id)
    if len(places) != len(inputs["voice"]):
        raise UsageError(
            f"prompt: {len(places)} [AUDIO] ids for a voice of {len(inputs['voice'])} rows; "
            "expected equal numbers"
        )
    results = {"prefill_hidden": decoder.prefill(inputs["ids"], inputs["voice"], places)}
    results |= _frames(decoder, inputs["noise"], inputs.get("codes"))
    traced = min(TRACED_FRAME, len(inputs["noise"]) - 1)
    condition = results.pop("condition")[traced]
    results["vel_x"] = inputs.get("vel_x", inputs["noise"][traced : traced + 1])
    for step in range(constants.euler_steps):
        velocity = decoder.velocity(results["vel_x"], step, condition)
        results[f"velocity_{step / constants.euler_steps:.4f}"] = velocity
    if "codec_codes" in inputs:
        results["audio"] = SpeechDecoder(engine.stream(), constants).decode(inputs["codec_codes"][0])[None]
    return results


def _frames(decoder: SpeechDecoder, noise: np.ndarray, forced: np.ndarray | None) -> Arrays:
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


TRACE = TraceWorkload[Constants](_inputs, _run)
