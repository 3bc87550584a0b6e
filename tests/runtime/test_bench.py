"""The output of `bench`, and the tables made of it. Figures must be consistent; no test depends on speed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.paths import ROOT

from voxport.bundle.manifest import Bundle
from voxport.runtime.__main__ import main as runtime
from voxport.runtime.machine import measure_bandwidth

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("target", ["onnx", "executorch"])
def test_figures_are_consistent(bundles: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        runtime(
            [
                "bench",
                str(bundles / target),
                "--frames",
                "4",
                "--prompt-tokens",
                "5",
                "--threads",
                "1",
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert {name: row["calls"] for name, row in found["components"].items()} == {
        "embed_text": 1,
        "prefill": 1,
        "embed_codes": 4,
        "decode_step": 4,
        "acoustic_step": 12,
        "codec_step": 4,
    }
    weights = {entry.name: entry.weight_bytes for entry in Bundle(bundles / target).components}
    frame = found["frame"]
    assert (
        frame["weight_bytes"] == weights["decode_step"] + 3 * weights["acoustic_step"] + weights["codec_step"]
        and not weights["embed_text"]
    )
    assert found["rtf"] == frame["median_ms"] / 80 and found["machine"]["threads"] == 1
    assert frame["mbu"] == pytest.approx(
        frame["weight_bytes"] / found["bandwidth_gb_s"] / 1e6 / frame["median_ms"]
    )
    assert 0 < frame["outside_ms"] < frame["median_ms"]
    assert found["first_sound_s"] > 0 and found["load_s"] > 0 and found["resident_bytes"] > 1e7
    assert runtime(["bench", str(bundles / target), "--frames", "2"]) == 0
    assert "RTF" in capsys.readouterr().out


def test_several_streams_are_timed_in_one_pass(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        runtime(
            [
                "bench",
                str(bundles / "onnx"),
                "--frames",
                "3",
                "--prompt-tokens",
                "3",
                "--threads",
                "1",
                "--streams",
                "1,3",
                "--json",
            ]
        )
        == 0
    )
    rows = json.loads(capsys.readouterr().out)["streams"]
    assert [row["streams"] for row in rows] == [1, 3]
    for row in rows:
        assert row["frames_per_s"] == pytest.approx(row["streams"] / row["pass_ms"] * 1e3)
        assert row["median_ms"].keys() == {"embed_codes", "decode_step", "acoustic_step"}
    for target, asked, most in (("onnx", "9", 8), ("onnx", "0", 8), ("executorch", "2", 1)):
        assert runtime(["bench", str(bundles / target), "--streams", asked]) == 2
        assert f"serves 1 to {most}" in capsys.readouterr().err


def test_invalid_numbers_are_usage_errors(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--frames", "0"], "--frames: expected at least 1, found 0"),
        (["--frames", "5000"], "the cache has 1024"),
    ):
        assert runtime(["bench", str(bundles / "onnx"), *arguments]) == 2
        assert message in capsys.readouterr().err


def test_the_measured_bandwidth_is_finite_and_positive() -> None:
    assert np.isfinite(measure_bandwidth(1, rounds=1)) and measure_bandwidth(1, rounds=1) > 0


def run_of(frame: float, recipe: str, **more: object) -> dict[str, Any]:
    """A run as `bench --json` prints it. The backbone takes half of a frame, the head a quarter."""
    calls = {"decode_step": 10, "acoustic_step": 70, "codec_step": 10, "embed_codes": 10}
    parts = {
        "decode_step": frame / 2,
        "acoustic_step": frame / 4 / 7,
        "codec_step": frame / 8,
        "embed_codes": frame / 16,
    }
    return {
        "bundle": {"name": "m", "family": "voxtral_tts", "target": "onnx", "recipe": recipe, "bytes": 100},
        "machine": {
            "processor": "P",
            "cores": 2,
            "threads": 2,
            "system": "S",
            "python": "3",
            "onnxruntime": "1",
        },
        "bandwidth_gb_s": 40.0,
        "resident_bytes": 130,
        "components": {
            name: {"calls": calls[name], "median_ms": parts[name], "gb_s": 10.0} for name in calls
        },
        "frame": {"frames": 10, "median_ms": frame, "outside_ms": frame / 16, "mbu": 0.6},
        "rtf": frame / 80,
        "first_sound_s": 0.5,
        "prompt_tokens": 20,
        "voice_rows": 218,
        **more,
    }


def test_runs_give_a_table_and_a_plot(tmp_path: Path) -> None:
    """Three runs of one bundle give a median and a range. Eager, timed in the last run, has its own row."""
    for index, frame in enumerate((160.0, 80.0, 100.0)):
        more = (
            {"eager": run_of(800.0, "bfloat16")}
            if index == 2
            else {"streams": [{"streams": 4, "frames_per_s": 8.0 + index}]}
        )
        (tmp_path / f"{index}.json").write_text(json.dumps(run_of(frame, "w4", **more)))
    document, plot = tmp_path / "performance.md", tmp_path / "bars.svg"
    command = [
        sys.executable,
        "tools/reports/bench_report.py",
        *map(str, sorted(tmp_path.glob("*.json"))),
        "--document",
        str(document),
        "--plot",
        str(plot),
    ]
    document.write_text("# no place\n")
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode and "no place" in refused.stderr
    document.write_text(
        "before\n<!-- bench voxtral_tts: made by tools/reports/bench_report.py -->\nold\n"
        "<!-- /bench voxtral_tts -->\nafter\n"
    )
    subprocess.run(command, cwd=ROOT, check=True)
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert (
        "| onnx w4 | 100 ms (80-160) | 1.25 (1.00-2.00) | 50 ms (40-80), 25 % | 25 ms (20-40), 25 % "
        "| 12 ms (10-20), 25 % | 60 % (60-60) |" in text
    )
    assert "| utterances per batch | 4 |\n|---|---|\n| onnx w4 | 8.5 frames/s (8.0-9.0) |\n" in text
    assert "| onnx bfloat16 | 800 ms | 10.00 |" in text and "3 runs" in text
    first = plot.read_bytes()
    subprocess.run(command, cwd=ROOT, check=True)
    assert plot.read_bytes() == first and b"<svg" in first and document.read_text() == text


def test_runs_of_two_families_are_refused(tmp_path: Path) -> None:
    for family in ("voxtral_tts", "voxtral_realtime"):
        run = run_of(80.0, "w4")
        run["bundle"]["family"] = family
        (tmp_path / f"{family}.json").write_text(json.dumps(run))
    refused = subprocess.run(
        [sys.executable, "tools/reports/bench_report.py", *map(str, tmp_path.glob("*.json"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert refused.returncode and "voxtral_realtime and voxtral_tts" in refused.stderr
