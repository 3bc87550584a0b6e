"""Bad input of an export gives one line (what, where, expected, remedy) and no partial output."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.bundle_options import QUANT, edit_manifest
from support.commands import error_line
from support.paths import ROOT

from voxport.bundle.manifest import Bundle
from voxport.export.__main__ import main as export
from voxport.export.staging import staging
from voxport.model.mistral_layout import MistralLayout


def test_a_second_export_to_the_same_place_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with staging(tmp_path / "out"):
        assert export(["--target", "onnx", "--out", str(tmp_path / "out")]) == 2
    assert "another export" in error_line(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.usefixtures("short_verification")
def test_files_beside_an_unverified_bundle_are_kept(onnx_copy: Path) -> None:
    edit_manifest(onnx_copy, lambda m: m["verification"].update(status="unverified"))
    (onnx_copy / "diary.txt").write_text("dear diary")
    assert export(["--target", "onnx", *QUANT, "--out", str(onnx_copy)]) == 0
    assert Bundle(onnx_copy).is_verified and (onnx_copy / "diary.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--target", "tflite"], 2, "onnx, executorch, coreml, coreai"),
        (["--target", "coreml,onnx", "--quant", "lut4"], 2, "onnx cannot store such palette weights"),
        (
            ["--target", "onnx", "--quant", "8da4w", "--compute-precision", "float16"],
            2,
            "onnx in float16 cannot store such integer weights with integer activations",
        ),
        (["--target", "executorch", "--quant", "w8g128"], 2, "executorch cannot store such integer weights"),
        (["--target", "coreai,executorch", "--quant", "w8g32"], 2, "only coreai, coreml, onnx can; use w8"),
        (["--target", "onnx", "--quant", "w8g182"], 2, "did you mean w8g128?"),
        (["--target", "onnx", "--quant", "auto", "--bits", "0"], 2, "expected more than 4"),
        (["--target", "onnx", "--quant", "w4", "--bits", "5"], 2, "--bits is for --quant auto"),
        (["--target", "onnx", "--calibrate"], 2, "the recipe quantises nothing"),
        (["--target", "onnx", "--quant", "w4", "--calibrate", "no.safetensors"], 2, "has no statistics"),
        (["--target", "onx"], 2, "did you mean onnx?"),
        (["--target", "onnx", "--model", "voxtral-ts"], 2, "did you mean voxtral-tts?"),
        (["--target", "onnx", "--quant-for", "backbon=w8"], 2, "did you mean backbone?"),
        (["--target", "onnx", "--modle=qwen3-tts"], 2, "did you mean --model?"),
        (["--target", "executorch", "--compute-precision", "float32"], 2, "executorch computes in float32"),
        (
            ["--target", "onnx", "--quant", "w3"],
            2,
            "none, w8, w8g32, w8g128, w4, w4g128, lut4, lut4g8, lut4g32, w4a32, w8a32, 8da4w",
        ),
        (["--target", "onnx", "--quant-for", "voice=w8"], 2, "embed_text"),
        (["--target", "onnx", "--quant-for", "codec"], 2, "COMPONENT=RECIPE"),
        (
            ["--target", "onnx", "--quant-for", "codec=w8", "--quant-for", "codec_step=w4"],
            2,
            "shares its weights",
        ),
        (["--target", "onnx", "--quant-rule", "layers"], 2, "PATTERN=RECIPE"),
        (["--target", "onnx", "--quant-rule", "layer.*=w4"], 2, "matches no weight"),
        (["--target", "onnx", "--cache-length", "63"], 2, "64 to"),
        (["lst"], 2, "export, verify, list, say"),
        (["--target", "onnx", "--checkpoint", "/nowhere"], 2, "/nowhere"),
    ],
)
def test_export_refuses(
    arguments: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export([*arguments, "--out", str(tmp_path / "out")]) == code
    assert says in error_line(capsys)
    assert not list(tmp_path.iterdir())


def test_a_group_size_that_does_not_divide_a_row_is_named(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The input projection of the acoustic head has 36 inputs."""
    rule = ["--quant-rule", "acoustic_transformer.input_projection=w4"]
    assert export(["--target", "onnx", *rule, "--out", str(tmp_path / "out")]) == 2
    assert "the 36 inputs of acoustic_transformer.input_projection" in error_line(capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", ["truncated", "no tekken", "tekken array", "voice width"])
def test_faulty_checkpoints_are_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, folder)
    weights = folder / "consolidated.safetensors"
    if fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif fault == "no tekken":
        weights.unlink()
    elif fault == "tekken array":
        (folder / "tekken.json").write_text("[]")
    else:
        torch.save(torch.zeros(4, 9, dtype=torch.bfloat16), folder / "voice_embedding" / "fr_male.pt")
    code = export(["--checkpoint", str(folder), "--target", "onnx", "--out", str(tmp_path / "out")])
    assert code == 5
    assert not (tmp_path / "out").exists()
    assert str(folder) in error_line(capsys)


@pytest.mark.slow
def test_an_export_on_a_full_disk_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    """A limit on file size has the effect of a full disk: exit 3, and no files."""
    code = "import resource, signal, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000));"
    code += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    code += "from voxport.export.__main__ import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["--checkpoint", str(checkpoint), "--target", "onnx", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 3, done.stderr
    assert "File too large; raise the limit" in done.stderr and not list(tmp_path.iterdir())


def test_an_export_warns_of_missing_files_that_the_format_has(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = shutil.copytree(
        checkpoint, tmp_path / "bare", ignore=shutil.ignore_patterns("tekken.json", "voice_embedding")
    )
    assert export(["--target", "onnx", "--checkpoint", str(bare), "--dry-run"]) == 0
    error = capsys.readouterr().err
    assert "no tokenizer" in error and "no voices" in error
    monkeypatch.setattr(MistralLayout, "has_tokenizer", False)
    assert export(["--target", "onnx", "--checkpoint", str(bare), "--dry-run"]) == 0
    error = capsys.readouterr().err
    assert "no tokenizer" not in error and "no voices" in error


def test_help_answers_without_torch() -> None:
    for command in (
        ["export", "--help"],
        ["export", "verify", "--help"],
        ["runtime", "say", "--help"],
        ["model", "synth", "--help"],
    ):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", *command], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 0 and "usage" in done.stdout
        assert not [line for line in done.stderr.splitlines() if line.split("|")[-1].strip() == "torch"]


@pytest.mark.parametrize(
    "command", [["export", "--target", "onnx"], ["model", "convert", ".", "out", "--to", "mlx"]]
)
def test_an_export_without_torch_names_the_missing_package(command: list[str]) -> None:
    code = "import sys; sys.modules['torch'] = None;"
    code += f"from {command[0]}.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *command[1:]], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2 and "torch is not installed" in done.stderr and "Traceback" not in done.stderr
