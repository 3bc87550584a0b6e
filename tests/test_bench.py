"""What `bench` reports: every figure is there and they agree with each other. Nothing here depends on how fast it is."""

import json

import numpy as np
import pytest

from runtime.__main__ import main as runtime
from runtime.bench import measure_bandwidth
from runtime.bundle import Bundle

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("target", ["onnx", "executorch"])
def test_figures_agree_with_each_other(bundles, target, capsys):
    assert runtime(["bench", str(bundles / target), "--frames", "4", "--prompt-tokens", "5", "--threads", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: row["calls"] for name, row in found["components"].items()} == {
        "embed_text": 1,
        "prefill": 1,
        "embed_codes": 4,
        "decode_step": 4,
        "acoustic_step": 28,
        "codec_step": 4,
    }
    weights = {entry.name: entry.weight_bytes for entry in Bundle(bundles / target).manifest.components}
    frame = found["frame"]
    assert frame["weight_bytes"] == weights["decode_step"] + 7 * weights["acoustic_step"] + weights["codec_step"] and not weights["embed_text"]
    assert found["rtf"] == frame["median_ms"] / 80 and found["machine"]["threads"] == 1
    assert frame["share_of_floor"] == pytest.approx(frame["weight_bytes"] / found["bandwidth_gb_s"] / 1e6 / frame["median_ms"])
    inside = sum(row["median_ms"] * (7 if name == "acoustic_step" else 1) for name, row in found["components"].items() if row["per_frame"])
    assert 0 < frame["outside_ms"] < frame["median_ms"] and inside < 3 * frame["median_ms"]
    assert found["first_sound_s"] > 0 and found["resident_bytes"] > 1e7
    assert runtime(["bench", str(bundles / target), "--frames", "2"]) == 0
    assert "RTF" in capsys.readouterr().out


def test_bad_numbers_are_told(bundles, capsys):
    for arguments, message in ((["--frames", "0"], "--frames 0: expected at least 1"), (["--frames", "5000"], "the cache has 2048")):
        assert runtime(["bench", str(bundles / "onnx"), *arguments]) == 2
        assert message in capsys.readouterr().err


def test_bandwidth_is_a_rate():
    assert np.isfinite(measure_bandwidth(1, rounds=1)) and measure_bandwidth(1, rounds=1) > 1e8
