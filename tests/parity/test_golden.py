"""Comparison with an independent implementation of Voxtral-TTS, in eager and in compiled targets.

The bar is 1e-4 of the largest value.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from support.export.cache import ExportCache
from support.export.eager_trace import trace_eager

from voxport.runtime.__main__ import main as runtime

GOLDEN = Path(__file__).parent / "golden" / "voxtral_tts"
CHECKPOINT = GOLDEN / "checkpoint"
BAR = 1e-4
# A default Core ML bundle rounds constants (cosines, time tokens, folded convolutions) to half precision.
# Each rounding is 2^-12, and about a dozen follow each other.
FLOAT16_CONSTANTS_BAR = 1e-3
COMPARED = ("prefill_hidden", "hidden", "semantic_logits", "velocity_0.0000", "velocity_0.4286", "audio")
OPTIONS = {
    "reference": {"alibi_slopes": "standard", "first_frame": "audio_token"},
    "reference-makers": {"alibi_slopes": "mistral", "first_frame": "prefill"},
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The inputs of a trace for each reference."""
    folder, paths = tmp_path_factory.mktemp("inputs"), {}
    for name in OPTIONS:
        paths[name] = folder / f"{name}.npz"
        with np.load(GOLDEN / f"{name}.npz") as reference:
            arrays = {key: reference[key] for key in ("ids", "voice", "noise", "codec_codes", "vel_x")}
        np.savez(paths[name], **arrays)
    return paths


def assert_golden(found: Mapping[str, np.ndarray], name: str, bar: float = BAR) -> None:
    with np.load(GOLDEN / f"{name}.npz") as reference:
        np.testing.assert_array_equal(found["codes"], reference["codes"])
        for key in COMPARED:
            error = np.abs(found[key] - reference[key]).max() / np.abs(reference[key]).max()
            assert found[key].shape == reference[key].shape and error < bar, f"{key}: {error:.1e}"


@pytest.mark.parametrize("name", OPTIONS)
def test_eager_equals_the_reference(name: str, inputs: dict[str, Path]) -> None:
    assert_golden(trace_eager(CHECKPOINT, inputs[name], OPTIONS[name]), name)


@pytest.mark.parametrize("changed", ["alibi_slopes", "first_frame"])
@pytest.mark.parametrize(
    ("name", "other"), [("reference", "reference-makers"), ("reference-makers", "reference")]
)
def test_the_other_value_of_each_option_differs_from_the_reference(
    name: str, other: str, changed: str, inputs: dict[str, Path]
) -> None:
    found = trace_eager(CHECKPOINT, inputs[name], OPTIONS[name] | {changed: OPTIONS[other][changed]})
    with pytest.raises(AssertionError):
        assert_golden(found, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "precision", "name"),
    [
        ("onnx", None, "reference"),  # the settings differ in graphs that eager and every target share
        ("onnx", None, "reference-makers"),
        ("executorch", None, "reference-makers"),
        ("coreml", "float32", "reference-makers"),
        ("coreml", "float16", "reference-makers"),
        ("coreai", "float32", "reference-makers"),
    ],
)
def test_artifacts_equal_the_reference(
    exports: ExportCache,
    name: str,
    inputs: dict[str, Path],
    tmp_path: Path,
    target: str,
    precision: str | None,
) -> None:
    bundle, out = tmp_path / "bundle", tmp_path / "out.npz"
    arguments = ["--checkpoint", str(CHECKPOINT), "--target", target, "--quant", "none"]
    arguments += ["--cache-length", "64"]
    arguments += [f"--{option.replace('_', '-')}={value}" for option, value in OPTIONS[name].items()]
    arguments += ["--compute-precision", precision] if precision else []
    exports.export(bundle, *arguments, "--no-verify")
    executed = ["--compute-precision", "float32"] if target == "coreml" else []
    assert runtime(["trace", str(bundle), "--inputs", str(inputs[name]), "-o", str(out), *executed]) == 0
    with np.load(out) as found:
        assert_golden(found, name, FLOAT16_CONSTANTS_BAR if precision == "float16" else BAR)
