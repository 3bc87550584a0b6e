"""Rows of docs/figures: medians of runs, and a row that replaces the one of its id."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tools import figures

MACHINE = {
    "processor": "CPU",
    "instructions": "AVX2, AVX-512",
    "cores": 2,
    "threads": 2,
    "onnxruntime": "1.31",
}


def run_of(frame: float) -> dict[str, Any]:
    """A result of `voxport bench`: seven calls of the head in a frame, one of the others."""
    components = {"decode_step": 1, "acoustic_step": 7, "codec_step": 1}
    return {
        "bundle": {"bytes": 2e9},
        "machine": MACHINE,
        "components": {
            name: {"median_ms": frame / 10, "calls": 50 * calls} for name, calls in components.items()
        },
        "frame": {"median_ms": frame, "frames": 50, "mbu": 0.5},
        "rtf": frame / 80,
        "first_sound_s": frame / 100,
        "resident_bytes": 3e9,
        "bandwidth_gb_s": 30,
        "streams": [{"streams": 4, "frames_per_s": 1000 / frame}],
    }


def test_runs_of_a_bundle_give_a_median_and_a_range() -> None:
    row = figures.speed("model onnx w4", [run_of(frame) for frame in (160.0, 80.0, 100.0)])
    assert (row["frame_ms"], row["frame_ms_range"], row["rtf"]) == ("100", "80-160", "1.25")
    assert (row["step_ms"], row["head_ms"], row["frames_per_s_4"]) == ("10", "70", "10.0")
    assert (row["runs"], row["machine"], row["versions"]) == (
        "3",
        "CPU, AVX-512, 2 cores",
        "onnxruntime 1.31",
    )


def test_a_row_replaces_the_one_of_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    about = dict.fromkeys(figures.CONDITIONS, "x")
    figures.put("speed", [{"id": "a", "ms": "1", **about}, {"id": "b", "ms": "2", **about}])
    figures.put("speed", [{"id": "a", "ms": "3", "rtf": "4", **about}])
    with (tmp_path / "speed.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["ms"], row["rtf"]) for row in rows] == [("a", "3", "4"), ("b", "2", "")]
    assert list(rows[0])[-4:] == list(figures.CONDITIONS)
