"""Every intermediate value of an utterance, for whoever writes or debugs a runner. Works on any engine's streams.

Inputs and outputs bear the names that BUNDLE.md lists.
"""

from __future__ import annotations

import io
import logging
import zipfile
import zlib
from pathlib import Path

import numpy as np

from runtime.engines.base import Engine
from runtime.errors import UsageError, first_line
from runtime.files import write_whole
from runtime.voxtral_tts import FIRST_CODE, Constants, Speaker

log = logging.getLogger(__name__)
Arrays = dict[str, np.ndarray]
TRACED_FRAME = 3  # frame whose hidden state conditions the velocities that are written


def read_inputs(path: Path, constants: Constants) -> Arrays:
    """`ids` [P], `voice` [N, dim], `noise` [F, K - 1]; optional `codes` [F, K], `codec_codes` [1, T, K], `vel_x` [1, K - 1].

    Raises UsageError that names the array.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, TypeError, AttributeError) as error:  # the last two: an .npy
        raise UsageError(f"{path}: not a readable .npz of arrays ({first_line(error)})") from None
    books = constants.n_codebooks
    shapes = {"ids": (None,), "voice": (None, constants.dim), "noise": (None, books - 1)}
    optional = {"codes": (None, books), "codec_codes": (1, None, books), "vel_x": (1, books - 1)}
    for name, shape in (shapes | optional).items():
        if name not in arrays:
            if name in optional:
                continue
            raise UsageError(f"{path}: array {name} is missing; expected {', '.join(shapes)}, optionally {', '.join(optional)}")
        found = arrays[name].shape
        if len(found) != len(shape) or any(want not in (None, size) for size, want in zip(found, shape, strict=True)):
            raise UsageError(f"{path}: array {name} has shape {list(found)}, expected {['any' if s is None else s for s in shape]}")
        kind = np.floating if name in ("voice", "noise", "vel_x") else np.integer
        if not np.issubdtype(arrays[name].dtype, kind):
            raise UsageError(f"{path}: array {name} is {arrays[name].dtype}, expected {kind.__name__}")
        arrays[name] = arrays[name].astype(np.float32 if kind is np.floating else np.int64)
        if not np.isfinite(arrays[name]).all():
            raise UsageError(f"{path}: array {name} holds values that are not finite")
    _check_range(path, "ids", arrays["ids"], constants.vocab_size)
    for name in ("codes", "codec_codes"):
        if name in arrays:
            _check_range(path, f"{name}[..., 0]", arrays[name][..., 0], constants.semantic_codes + FIRST_CODE)
            _check_range(path, f"{name}[..., 1:]", arrays[name][..., 1:], constants.acoustic_levels + FIRST_CODE)
    if len(arrays["noise"]) == 0:
        raise UsageError(f"{path}: noise has no frame; expected one row per frame")
    if "codes" in arrays and len(arrays["codes"]) != len(arrays["noise"]):
        raise UsageError(f"{path}: codes has {len(arrays['codes'])} frames, noise has {len(arrays['noise'])}; expected as many")
    unknown = sorted(arrays.keys() - shapes.keys() - optional.keys())
    if unknown:
        log.warning("%s: not used: %s; expected %s, optionally %s", path, ", ".join(unknown), ", ".join(shapes), ", ".join(optional))
    return {name: array for name, array in arrays.items() if name not in unknown}


def _check_range(path: Path, name: str, values: np.ndarray, end: int) -> None:
    if values.size and not 0 <= values.min() <= values.max() < end:
        raise UsageError(f"{path}: array {name} has values from {values.min()} to {values.max()}, expected 0 to {end - 1}")


def trace(engine: Engine, constants: Constants, inputs: Arrays) -> Arrays:
    """Runs the utterance; given `codes` are fed back in place of the ones chosen (teacher forcing)."""
    speaker = Speaker(engine.stream(), constants)
    outputs = {"prefill_hidden": speaker.prefill(inputs["ids"], inputs["voice"])}
    chosen, outlooks, forced = [], [], inputs.get("codes")
    for index in range(len(inputs["noise"])):
        outlooks.append(speaker.outlook)
        chosen.append(speaker.frame(inputs["noise"][index : index + 1]))
        if index + 1 < len(inputs["noise"]):
            speaker.step(speaker.embed(chosen[-1] if forced is None else forced[index : index + 1]))
    outputs["hidden"] = np.stack([outlook.hidden for outlook in outlooks])
    outputs["semantic_logits"] = np.stack([outlook.semantic_logits for outlook in outlooks])
    outputs["codes"] = np.concatenate(chosen)
    traced = min(TRACED_FRAME, len(outlooks) - 1)
    outputs["vel_x"] = inputs.get("vel_x", inputs["noise"][traced : traced + 1])
    for step in range(constants.euler_steps):
        outputs[f"velocity_{step / constants.euler_steps:.4f}"] = speaker.velocity(outputs["vel_x"], step, outlooks[traced].condition)
    if "codec_codes" in inputs:
        codec = Speaker(engine.stream(), constants)
        outputs["audio"] = codec.decode(inputs["codec_codes"][0])[None]
    return outputs


def write_outputs(path: Path, outputs: Arrays) -> None:
    """As .npz. Raises RuntimeFault where that is not possible."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **outputs)
    write_whole(path, content.getvalue())
