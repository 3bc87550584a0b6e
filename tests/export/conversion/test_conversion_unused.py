"""Tensors that no graph needs: the encoder of the speech tokenizer in CustomVoice and VoiceDesign."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.export.conversions import FOLDERS, assert_equal, convert, rewrite, tensors

from voxport.export.__main__ import main as export

QWEN = FOLDERS["qwen3_tts"].parent
CODEC = Path("speech_tokenizer") / "model.safetensors"
INPUTS = ("decoder.quantizer.rvq_first.input_proj.weight", "decoder.quantizer.rvq_rest.input_proj.weight")
DOWNSAMPLE = "encoder.downsample.conv.weight"


def is_unused_kernel(name: str, tensor: torch.Tensor) -> bool:
    """None of them is a transposed convolution."""
    return tensor.ndim == 3 and (name.startswith("encoder.") or name in INPUTS)


def reorder(folder: Path, every: int) -> None:
    """Writes every n-th of them in the order of MLX."""

    def change(content: dict[str, torch.Tensor]) -> None:
        names = sorted(name for name, tensor in content.items() if is_unused_kernel(name, tensor))
        for name in names[::every]:
            content[name] = content[name].permute(0, 2, 1)

    rewrite(folder / CODEC, change)


@pytest.fixture(params=["base", "custom_voice", "voice_design"])
def published(request: pytest.FixtureRequest) -> Path:
    return Path(QWEN / request.param)


@pytest.mark.parametrize("every", [1, 2])
def test_they_are_read_in_both_layouts(published: Path, tmp_path: Path, every: int) -> None:
    folder = shutil.copytree(published, tmp_path / "mixed")
    reorder(folder, every)
    assert convert(folder, tmp_path / "back", "--to", "published") == 0
    assert_equal(tensors(tmp_path / "back"), tensors(published))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content.pop(DOWNSAMPLE), f"tensor speech_tokenizer.{DOWNSAMPLE} missing"),
        (lambda content: content.pop(INPUTS[0]), None),  # nothing else is below this prefix
        (
            lambda content: content.update({DOWNSAMPLE: torch.zeros(32, 32, 5)}),
            f"tensor speech_tokenizer.{DOWNSAMPLE}: shape [32, 32, 5], expected [32, 32, 4]",
        ),
        (
            lambda content: content.update({"encoder.other.weight": torch.zeros(2, 3, 4)}),
            "tensor speech_tokenizer.encoder.other.weight: shape [2, 3, 4] may be a kernel of either layout",
        ),
        (lambda content: content.update({"encoder.other.weight": torch.zeros(2, 3)}), None),
        (lambda content: [content.pop(name) for name in list(content) if name.startswith("encoder.")], None),
    ],
)
def test_some_of_them_missing_or_misshapen(
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], object],
    says: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They may be left out together. What the configuration does not describe has no kernels."""
    folder = shutil.copytree(QWEN / "custom_voice", tmp_path / "source")
    rewrite(folder / CODEC, change)
    assert convert(folder, tmp_path / "out", "--to", "published") == (5 if says else 0)
    if says:
        assert says in capsys.readouterr().err
    else:
        assert_equal(tensors(tmp_path / "out"), tensors(folder))
    if not says or "missing" in says:
        arguments = ["--checkpoint", str(folder), "--target", "onnx", "--dry-run"]
        assert export(arguments) == 0  # which needs none of them
