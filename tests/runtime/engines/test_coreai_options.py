"""Options that Core AI does not have are refused, and what commands do for it alone."""

import shutil
import sys
from pathlib import Path

import pytest
from support.bundle_options import QUANT
from support.export.cache import ExportCache
from support.export.coreml_packages import verify

import voxport
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.runtime.__main__ import main as runtime
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import EngineOptions


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, exports: ExportCache) -> Path:
    folder = tmp_path_factory.mktemp("coreai") / "bundle"
    precision = ("--compute-precision", "float32")
    return exports.export(folder, "--target", "coreai", *QUANT, *precision, "--no-verify")


def test_hashes_are_always_compared(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say = ["say", "Hi.", "--bundle", str(bundle), "-o", str(tmp_path / "out.wav")]
    for command in (say, ["serve", "--bundle", str(bundle)]):
        assert runtime([*command, "--no-check"]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"error: --no-check: {bundle}: the engine for coreai aborts on damaged files" in error
    with pytest.raises(UsageError, match=r"check_hashes: .* leave it out"):
        voxport.open(bundle, check_hashes=False)


def test_bench_names_no_threads_and_compares_hashes(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    bench = ["bench", str(copy), "--frames", "1", "--prompt-tokens", "3"]
    assert runtime(bench) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "Core AI" in first and "threads" not in first
    program = copy / "backbone.aimodel" / "main.mlirb"
    program.write_bytes(program.read_bytes()[:-1] + b"?")
    assert runtime(bench) == 5
    assert "main.mlirb: its bytes differ from the manifest's hash" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has the system's runtime")
def test_compute_units_need_the_system_runtime(bundle: Path) -> None:
    with pytest.raises(UsageError, match=r"compute_units cpu_and_ne: .* or run on macOS 27"):
        open_engine(Bundle(bundle), EngineOptions(compute_units="cpu_and_ne"))


def test_verify_refuses_options_without_effect(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, value, message in (
        ("--compute-units", "cpu", "verification uses no compute units here"),
        ("--compute-precision", "float16", "applies to bundles for coreml"),  # the program is float32
        ("--device", "cpu", "applies to bundles for onnx"),
    ):
        assert verify(bundle, option, value) == 2
        error = capsys.readouterr().err
        assert f"error: {option}" in error and message in error
