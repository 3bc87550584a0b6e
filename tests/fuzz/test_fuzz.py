"""A small share of the hostile input: the same cases in every run. `make fuzz` runs others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
# Not `executorch`: each case starts another process with torch, which takes several seconds.
AREAS = (
    "manifest",
    "signature",
    "voice",
    "prefix",
    "tokenizer",
    "onnx",
    "coreml",
    "checkpoint",
    "audio",
    "trace",
    "text",
    "options",
    "cloning",
    "foreign_voice",
    "codes",
    "conversion",
)
CASES = 5


@pytest.mark.slow
def test_hostile_input_ends_with_one_line(
    bundles: Path, realtime_bundles: Path, qwen_bundles: Path, tmp_path: Path
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
    options = ["--cases", str(CASES), "--bundles", str(undamaged), "-o", str(tmp_path / "result.json")]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--areas", *AREAS, *options],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert not result["failures"]
    assert result["cases"] == dict.fromkeys(AREAS, CASES)
