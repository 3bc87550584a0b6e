"""`voxport export --calibrate`: what it says of itself, and when it looks at its output folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.model.micro import micro_checkpoint

from voxport.__main__ import main as voxport
from voxport.export import memory
from voxport.export.calibration import free_run, run
from voxport.export.calibration.data import from_folder
from voxport.quantize.calibration import ABOUT


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data of a short calibration, with a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(free_run, "FRAMES", 16)
    (found := tmp_path / "texts.txt").write_text("Seven geese.\nNo, on Friday!\n")
    return found


def export(*options: object, quant: str = "w4") -> int:
    command = ["--checkpoint", micro_checkpoint("voxtral_tts"), "--target", "onnx", "--quant", quant]
    return voxport(["export", *map(str, command), "--no-verify", "-q", *map(str, options)])


def test_a_calibrated_bundle_says_so_and_statistics_make_it_again(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with another bundle is refused before anything is recorded."""
    data, out = from_folder(texts, listens=False).sha256, tmp_path / "out"
    assert export("--calibrate", texts, "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"calibration with 2 sentences, sha256 {data}: up to 32 frames, estimated 0.9 GB" in said
    assert "after the calibration" in said and not out.exists()
    assert export("--calibrate", texts, "--out", out) == 0
    capsys.readouterr()
    assert voxport(["info", str(out)]) == 0
    assert f"calibrated with data {data}\n" in capsys.readouterr().out
    manifest = json.loads((out / "manifest.json").read_text())
    statistics, readme = manifest["job"]["calibration"], (out / "README.md").read_text()
    assert f"chose the integers (sha256: data {data}, statistics {statistics})" in readme

    monkeypatch.setattr(run, "record_run", None)
    other = tmp_path / "other.txt"
    other.write_text("Another text.\nAnd one more.\n")
    for more in (("--calibrate", other), ("--calibrate", texts, "--cache-length", 128)):
        assert export(*more, "--out", out) == 2
        said = capsys.readouterr().err
        assert "holds another bundle" in said and said.count("\n") == 1
    stored = next((tmp_path / "cache").rglob(f"*{statistics}.safetensors"))
    given = stored.rename(tmp_path / "given.safetensors")
    again = tmp_path / "again"
    for _ in range(2):  # it is not another bundle the second time
        assert export("--calibrate", given, "--out", again) == 0
    files = [path.relative_to(out) for path in out.rglob("*") if path.is_file()]
    assert files and all((out / name).read_bytes() == (again / name).read_bytes() for name in files)


def test_two_exports_do_not_make_one_calibration_and_memory_is_asked_for_before(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, codes = free_run.record_run, list[int]()

    def record_during_another_export(*parts: Any) -> Any:
        codes.append(export("--calibrate", texts, "--out", tmp_path / "other"))
        return record(*parts)

    monkeypatch.setattr(run, "record_run", record_during_another_export)
    assert export("--calibrate", texts, "--out", tmp_path / "out") == 0 and codes == [2]
    assert "another export makes this calibration; wait for that one" in capsys.readouterr().err
    (free := tmp_path / "container").mkdir()
    (free / "memory.max").write_text("1000000")
    (free / "memory.current").write_text("0")
    (free / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    monkeypatch.setattr(memory, "CGROUP", free)
    texts.write_text("Another text.\nAnd one more.\n")
    assert export("--calibrate", texts, "--out", tmp_path / "other") == 3
    assert "the calibration of " in (said := capsys.readouterr().err) and "another machine made" in said
    assert len(codes) == 1 and not (tmp_path / "other").exists()


def test_a_mixture_is_rules_in_the_manifest_and_a_table_for_people(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, budget = tmp_path / "out", ("--bits", 6)
    assert export(*budget, "--calibrate", texts, "--out", out, quant="auto") == 0
    job, readme = json.loads((out / "manifest.json").read_text())["job"], (out / "README.md").read_text()
    rules = dict(rule.split("=") for rule in job["request"]["rules"])
    assert set(rules.values()) <= {"w4g128", "w8"} and "| layers.0 |" in readme
    paths = [path for path in rules if path.startswith("layers.0.")]
    assert paths
    for path in paths:
        assert path.removeprefix("layers.0.") in readme.partition("| layers.0 |")[2].partition("\n")[0]
    given = next((tmp_path / "cache").rglob(f"*{job['calibration']}.safetensors"))
    assert export("--bits", 5, "--calibrate", given, "--out", tmp_path / "b", quant="auto") == 2
    assert "are for the recipe auto with 6 bits per weight" in capsys.readouterr().err
    assert export(*budget, "--calibrate", given, "--out", out, quant="auto") == 0
    with safe_open(given, "pt") as file:
        about = json.loads(file.metadata()[ABOUT]) | {"budget": None}
    save_file(load_file(given), damaged := tmp_path / "damaged.safetensors", {ABOUT: json.dumps(about)})
    assert export(*budget, "--calibrate", damaged, "--out", tmp_path / "b", quant="auto") == 2
    assert "its mixture has no budget" in capsys.readouterr().err
