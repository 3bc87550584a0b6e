"""Agreement with an independent implementation, to 1e-4 of the largest value, in eager and in two compiled targets."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from export.__main__ import main as export
from runtime.__main__ import main as runtime

GOLDEN = Path(__file__).parent / "golden" / "voxtral_tts"
BAR = 1e-4
# Constants (cosines, time tokens, folded convolutions) are rounded to half on a default Core ML bundle, 2^-12 each, some dozen behind each other.
HALF_CONSTANTS_BAR = 1e-3
TABLE = "mm_audio_embeddings.audio_codebook_embeddings.embeddings.weight"
BEHIND_THE_TABLE, HEADER = "layers.2.feed_forward.w3.weight", 4
COMPARED = ("prefill_hidden", "hidden", "semantic_logits", "velocity_0.0000", "velocity_0.4286", "audio")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """The golden checkpoint with the rows that its reference read beyond the table (see golden/README.md)."""
    folder = tmp_path_factory.mktemp("golden") / "checkpoint"
    shutil.copytree(GOLDEN / "checkpoint", folder)
    tensors = load_file(folder / "consolidated.safetensors")
    table = tensors[TABLE]
    behind = torch.cat((torch.zeros(HEADER), tensors[BEHIND_THE_TABLE].float().flatten()))
    rows = behind[: 128 * table.shape[1]].reshape(128, -1).to(table.dtype)
    save_file(tensors | {TABLE: torch.cat((table, rows))}, folder / "consolidated.safetensors")
    return folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "in.npz"
    with np.load(GOLDEN / "reference.npz") as reference:
        np.savez(
            path, **{name: reference[name] for name in ("ids", "voice", "noise", "codec_codes", "vel_x")}
        )
    return path


def assert_golden(path: Path, bar: float = BAR) -> None:
    with np.load(GOLDEN / "reference.npz") as reference, np.load(path) as found:
        np.testing.assert_array_equal(found["codes"], reference["codes"])
        for name in COMPARED:
            error = np.abs(found[name] - reference[name]).max() / np.abs(reference[name]).max()
            assert found[name].shape == reference[name].shape and error < bar, f"{name}: {error:.1e}"


def test_eager_agrees(checkpoint, inputs, tmp_path):
    out = tmp_path / "out.npz"
    assert (
        export(
            [
                "trace",
                "--checkpoint",
                str(checkpoint),
                "--alibi-slopes",
                "standard",
                "--inputs",
                str(inputs),
                "-o",
                str(out),
            ]
        )
        == 0
    )
    assert_golden(out)


@pytest.mark.parametrize(
    "switches", [["--alibi-slopes", "mistral"], ["--alibi-slopes", "standard", "--first-frame", "prefill"]]
)
def test_the_other_setting_of_each_switch_disagrees(checkpoint, inputs, tmp_path, switches):
    out = tmp_path / "out.npz"
    assert (
        export(["trace", "--checkpoint", str(checkpoint), *switches, "--inputs", str(inputs), "-o", str(out)])
        == 0
    )
    with pytest.raises(AssertionError):
        assert_golden(out)


def test_the_published_file_is_taken_with_a_warning(inputs, tmp_path, caplog):
    """Without the rows from beyond the table, all that does not depend on them still agrees."""
    out = tmp_path / "out.npz"
    assert (
        export(
            [
                "trace",
                "--checkpoint",
                str(GOLDEN / "checkpoint"),
                "--alibi-slopes",
                "standard",
                "--inputs",
                str(inputs),
                "-o",
                str(out),
            ]
        )
        == 0
    )
    with np.load(GOLDEN / "reference.npz") as reference, np.load(out) as found:
        np.testing.assert_allclose(found["hidden"][0], reference["hidden"][0], atol=BAR)
        np.testing.assert_allclose(
            found["audio"], reference["audio"], atol=BAR * np.abs(reference["audio"]).max()
        )
        np.testing.assert_array_equal(found["codes"][0], reference["codes"][0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "held"), [("onnx", None), ("executorch", None), ("coreml", "float32"), ("coreml", "float16")]
)
def test_artifacts_agree(checkpoint, inputs, tmp_path, target, held):
    bundle, out = tmp_path / "bundle", tmp_path / "out.npz"
    arguments = [
        "--checkpoint",
        str(checkpoint),
        "--target",
        target,
        "--alibi-slopes",
        "standard",
        "--cache-length",
        "64",
        "--out",
        str(bundle),
    ]
    arguments += ["--compute-precision", held] if held else []
    assert export([*arguments, "--no-verify"]) == 0
    assert (
        runtime(
            [
                "trace",
                str(bundle),
                "--inputs",
                str(inputs),
                "-o",
                str(out),
                *(["--compute-precision", "float32"] if held else []),
            ]
        )
        == 0
    )
    assert_golden(out, HALF_CONSTANTS_BAR if held == "float16" else BAR)
