"""The output of `bench`. Figures must be consistent; no test depends on speed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from voxport.bundle.manifest import Bundle
from voxport.runtime.__main__ import main as runtime
from voxport.runtime.machine import measure_bandwidth, resident_bytes


@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml"])
def test_figures_are_consistent(bundles: Path, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    bench = ["bench", str(bundles / target), "--prompt-tokens", "5", "--threads", "1", "--frames"]
    assert runtime([*bench, "4", "--json"]) == 0
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
    threads = None if target == "coreml" else 1  # its engine has no threads
    assert found["rtf"] == frame["median_ms"] / 80 and found["machine"]["threads"] == threads
    assert frame["mbu"] == pytest.approx(
        frame["weight_bytes"] / found["bandwidth_gb_s"] / 1e6 / frame["median_ms"]
    )
    assert 0 < frame["outside_ms"] < frame["median_ms"]
    assert found["first_sound_s"] > 0 and found["load_s"] > 0 and found["resident_bytes"] > 1e7
    assert runtime([*bench, "2"]) == 0
    text = capsys.readouterr().out
    assert "RTF" in text and ("1 threads" in text) == (threads == 1) and "None" not in text


def test_several_streams_are_timed_in_one_pass(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--frames", "3", "--prompt-tokens", "3", "--threads", "1", "--streams", "1,3", "--json"]
    assert runtime(["bench", str(bundles / "onnx"), *options]) == 0
    rows = json.loads(capsys.readouterr().out)["streams"]
    assert [row["streams"] for row in rows] == [1, 3]
    for row in rows:
        assert row["frames_per_s"] == pytest.approx(row["streams"] / row["pass_ms"] * 1e3)
        assert row["median_ms"].keys() >= {"embed_codes", "decode_step", "acoustic_step"}
    for target, asked, most in (("onnx", "9", 8), ("onnx", "0", 8), ("executorch", "2", 1)):
        assert runtime(["bench", str(bundles / target), "--streams", asked]) == 2
        assert f"serves 1 to {most}" in capsys.readouterr().err


def test_a_run_beside_stored_ones(bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = ["bench", str(bundles / "onnx"), "--frames", "3", "--prompt-tokens", "3"]
    assert runtime([*bench, "--threads", "1", "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)
    stored["frame"]["median_ms"] = 1e9
    stored["components"]["gone"] = stored["components"].pop("codec_step")
    (tmp_path / "old.json").write_text(json.dumps(stored))
    assert runtime([*bench, "--threads", "2", "--against", str(tmp_path / "old.json")]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["against"][1:] == ["this", "old.json", "ratio"]
    assert rows["codec_step"][-2:] == ["-", "-"]
    assert rows["old.json"] == ["old.json", "has", "threads", "1"]
    assert float(rows["frame"][-1]) == 0
    wrong = [stored | {"bundle": []}, stored | {"load_s": "x"}]
    for content in ("{", "[]", "{}", *map(json.dumps, wrong)):
        (tmp_path / "old.json").write_text(content)
        assert runtime([*bench, "--against", str(tmp_path / "old.json")]) == 2
        assert "is no run of `voxport bench --json`" in capsys.readouterr().err
    assert runtime([*bench, "--against", str(tmp_path / "absent.json")]) == 2
    assert "absent.json: cannot be read" in capsys.readouterr().err


def test_invalid_numbers_are_usage_errors(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--frames", "0"], "--frames: expected at least 1, found 0"),
        (["--frames", "5000"], "the cache has 1024"),
    ):
        assert runtime(["bench", str(bundles / "onnx"), *arguments]) == 2
        assert message in capsys.readouterr().err


def test_the_measured_bandwidth_is_finite_and_positive() -> None:
    assert np.isfinite(measure_bandwidth(1, rounds=1)) and measure_bandwidth(1, rounds=1) > 0


def test_memory_of_a_child_is_counted() -> None:
    """Core AI runs in one."""
    size, program = 64 << 20, "import sys; held = bytearray({}); print(flush=True); sys.stdin.read()"
    alone = resident_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", program.format(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout and child.stdout.readline()
        found = resident_bytes()
        child.communicate()
    assert alone and found and found > alone + size
