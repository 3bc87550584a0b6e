"""A small share of the hostile input: the same cases in every run. `python -m fuzz` runs others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.bundle_options import QUANT
from support.export.cache import ExportCache
from support.paths import ROOT

from fuzz.areas import AREAS

SKIPPED = {"executorch"}  # each case starts another process with torch, which takes several seconds


@pytest.mark.slow
def test_hostile_input_ends_with_one_line(
    bundles: Path, realtime_bundles: Path, qwen_bundles: Path, exports: ExportCache, tmp_path: Path
) -> None:
    undamaged = tmp_path / "undamaged"
    undamaged.mkdir()
    for name, source in {
        "speech": bundles / "onnx",
        "recognition": realtime_bundles / "onnx",
        "executorch": bundles / "executorch",
        "coreml": bundles / "coreml",
        "cloning": qwen_bundles / "onnx",
    }.items():
        (undamaged / name).symlink_to(source)
    float32 = ("--target", "coreai", "--compute-precision", "float32")  # float16 products are slow on Linux
    exports.export(undamaged / "coreai", *float32, *QUANT, "--no-verify")
    places = ["--bundles", str(undamaged), "--folder", str(tmp_path / "cases")]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--cases", "5", *places, "--areas", *sorted(AREAS.keys() - SKIPPED)],
        cwd=ROOT / "tests",
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_damaged_recordings_end_with_samples_or_a_reason() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.recordings", "--cases", "3"],
        cwd=ROOT / "tests",
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
