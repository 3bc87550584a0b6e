"""The run that times all families: failures are recorded, a failed capture is left out, and a run goes on."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.gpu import speed
from tools.gpu_check import SECONDS


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str) -> dict[str, Any]:
    options = ("--device", "cpu", "--size", "tiny", "--models", "qwen3-asr", "--frames", "2")
    command = ["speed", "--folder", str(folder), "-o", str(folder / "out.json"), *options, *more]
    monkeypatch.setattr(sys, "argv", command)
    assert speed.main() == 0
    return {phase["phase"]: phase for phase in json.loads((folder / "out.json").read_text())["phases"]}


@pytest.mark.slow
def test_a_run_without_a_gpu_has_all_figures_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, tmp_path, "--make")["export qwen3-asr"]["exit"] == 0
    found = run(monkeypatch, tmp_path, "--only", "captured 1")
    for batch in (1, 16):
        row = found[f"qwen3-asr captured {batch}"]["result"]
        assert row["frame_ms"] > 0 and row["utterances_equal"] and row["calls_ms"].keys() >= {"decode_step"}
    again = run(monkeypatch, tmp_path, "--only", "bound 1")
    assert again["qwen3-asr captured 1"] == found["qwen3-asr captured 1"]
    assert again["codes"]["result"].keys() >= {"qwen3-asr captured 1", "qwen3-asr bound 16"}


class Recorded:
    """A `Check` whose phase has a call that cannot be captured, until it is left out."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.commands = folder, list[tuple[str, ...]]()
        self.phases: list[dict[str, Any]] = []

    def run(self, name: str, *command: str, limit: int) -> bool:
        self.commands.append(command)
        self.phases.append({"phase": name, "result": {"error": "not permitted", "call": "codec_step"}})
        return "codec_step" in command


@pytest.mark.parametrize(("variant", "runs"), [("captured 1", 2), ("bound 1", 1)])
def test_a_call_that_cannot_be_captured_is_left_out(tmp_path: Path, variant: str, runs: int) -> None:
    check: Any = Recorded(tmp_path)
    (tmp_path / "voxtral-tts").mkdir()
    (tmp_path / "voxtral-tts" / "manifest.json").touch()
    speed.run(check, (f"voxtral-tts {variant}", 10, ("frames",)))
    assert check.commands == [("frames",), ("frames", "--without", "codec_step")][:runs]


def test_every_phase_has_a_name_and_the_first_ones_have_time() -> None:
    phases = speed.plan(speed.MODELS, "cuda", 60)
    assert len({name for name, _, _ in phases}) == len(phases)
    small = [limit for name, limit, _ in phases if name.endswith((" bench", *speed.FIRST)) and limit == 30]
    assert speed.DEVICE_S + speed.MAKE_S + sum(small) + speed.SERVER_S <= SECONDS


def test_codes_are_compared_with_those_of_bound_buffers() -> None:
    codes = {"tts bound 1": [1, 2, 3], "tts captured 1": [1, 2, 4], "tts bench": None, "asr captured 1": [1]}
    rows = [{"phase": name, "result": {"codes": each}} for name, each in codes.items()]
    found = speed.equal_frames([*rows, {"phase": "device", "result": ["a line"]}])
    assert found == {"tts bound 1": "3 of 3", "tts captured 1": "2 of 3"}
