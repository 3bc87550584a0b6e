"""The run that times all families: failures are recorded, a failed capture is left out, and a run goes on."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.export.cache import SharedBundles

from tools.gpu import speed
from tools.gpu_check import SECONDS


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, only: str) -> dict[str, Any]:
    options = ("--device", "cpu", "--size", "tiny", "--models", "voxtral-tts", "--frames", "2")
    command = ["speed", "--folder", str(folder), "-o", str(folder / "out.json"), *options, "--only", only]
    monkeypatch.setattr(sys, "argv", command)
    speed.main()
    return {phase["phase"]: phase for phase in json.loads((folder / "out.json").read_text())["phases"]}


@pytest.mark.slow
def test_a_run_without_a_gpu_has_all_figures_and_goes_on(
    bundles: SharedBundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "voxtral-tts").symlink_to(bundles / "onnx")
    (tmp_path / "checkpoint-voxtral-tts").mkdir()
    found = run(monkeypatch, tmp_path, "captured")
    rows = found["voxtral-tts captured"]["result"]["batches"]
    assert [row["batch"] for row in rows] == [1, 16] and all(row["frame_ms"] > 0 for row in rows)
    assert rows[0]["calls_ms"].keys() >= {"acoustic_step", "codec_step", "decode_step"}
    again = run(monkeypatch, tmp_path, "bound")
    assert again["voxtral-tts captured"] == found["voxtral-tts captured"]
    assert again["voxtral-tts bound"]["exit"] == 0


class Recorded:
    """A `Check` whose phase has a call that cannot be captured, until it is left out."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.phases: list[dict[str, Any]] = []

    def run(self, name: str, *command: str, limit: int) -> bool:
        self.commands.append(command)
        failed = [] if "codec_step" in command else [{"error": "not permitted", "call": "codec_step"}]
        self.phases.append({"phase": name, "result": {"batches": failed}})
        return True


@pytest.mark.parametrize(("variant", "runs"), [("captured", 2), ("bound", 1)])
def test_a_call_that_cannot_be_captured_is_left_out(variant: str, runs: int) -> None:
    check: Any = Recorded()
    speed.run(check, (f"voxtral-tts {variant}", 10, ("frames",)))
    assert check.commands == [("frames",), ("frames", "--without", "codec_step")][:runs]


def test_every_phase_has_a_name_and_a_limit_of_its_own() -> None:
    phases = speed.plan(speed.MODELS, "cuda", 60)
    assert len({name for name, _, _ in phases}) == len(phases)
    assert all(0 < limit <= SECONDS / 4 for _, limit, _ in phases)
