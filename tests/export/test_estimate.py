"""Memory and time that an export needs: estimates near measured figures, and refusals before it starts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.bundle_options import QUANT

from voxport.bundle.errors import ExportError
from voxport.bundle.manifest import ExportRequest, read_manifest
from voxport.export.__main__ import main as export
from voxport.export.estimate import estimate
from voxport.export.memory import check_memory
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target


@dataclass(frozen=True)
class Measured:
    """Figures of exports of the published size, by target: bytes at the peak, and seconds on the reference
    machine, with one mode of verification if any. None where lowering has changed since.

    `weights` counts all graphs: a head that is also a table counts twice, folded constants do not count.
    """

    family: str
    arguments: str
    tensors: int
    weights: int
    targets: dict[str, tuple[float, float | None]]


TTS: dict[str, tuple[float, float | None]] = {
    "onnx": (7.5e9, 197),
    "executorch": (8.5e9, 202),
    "coreml": (9.6e9, 275),
}
REALTIME: dict[str, tuple[float, float | None]] = {
    "onnx": (9.0e9, 263),
    "executorch": (11.1e9, None),
    "coreml": (10.7e9, 557),
}
TTS_WEIGHTS = 4_002_353_392 - 3072 * 3072
REALTIME_WEIGHTS = 4_429_679_360 + 131072 * 3072 - 26 * 2 * 32 * 3072
MEASURED = [
    Measured("voxtral_tts", "--quant w4", 386, TTS_WEIGHTS, TTS),
    Measured("voxtral_tts", "--quant w4 --no-verify", 386, TTS_WEIGHTS, {"coreai": (6.3e9, 150)}),
    Measured(
        "voxtral_realtime",
        "--quant 8da4w --cache-length 2048 --streaming",
        711,
        REALTIME_WEIGHTS,
        REALTIME,
    ),
    Measured("voxtral_realtime", "--quant w4 --no-verify", 711, REALTIME_WEIGHTS, {"coreai": (6.8e9, 178)}),
]


@pytest.mark.parametrize(
    "measured", MEASURED, ids=lambda measured: "-".join((measured.family, *measured.targets))
)
def test_dry_run_of_the_published_shapes_reads_no_weights_and_is_within_25_percent(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sparse files replace 8 GB of weights, because only shapes are read."""
    from voxport.model.checkpoint import expected_tensors
    from voxport.model.families import open_family

    family, folder = open_family(measured.family), tmp_path / "full"
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps(family.size_config("full")))
    shapes = expected_tensors(family.build_root(family.layout.load_config(folder)))
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (folder / "consolidated.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    assert len(shapes) == measured.tensors
    monkeypatch.setattr("voxport.export.estimate.speed", lambda: 1.0)  # of the machine that was measured
    monkeypatch.setattr("voxport.export.estimate.modes", lambda *_: [None])  # one, as when it was measured
    arguments = [
        "--checkpoint",
        str(folder),
        "--target",
        ",".join(measured.targets),
        *measured.arguments.split(),
        "--dry-run",
        "--json",
    ]
    assert export([*arguments, "--out", str(tmp_path / "out")]) == 0
    for result in json.loads(capsys.readouterr().out):
        assert sum(graph["weights"] for graph in result["graphs"].values()) == measured.weights
        assert 2.2e9 < result["disk_bytes"] < 3.2e9
        peak, seconds = measured.targets[result["target"]]
        assert result["memory_bytes"] == pytest.approx(peak, rel=0.25)
        assert seconds is None or result["seconds"] == pytest.approx(seconds, rel=0.25)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("recipe", "modes"), [("w4", 2), ("none", 1)])
def test_an_estimate_counts_every_mode_of_verification(checkpoint: Path, recipe: str, modes: int) -> None:
    """ONNX with integer activations is also verified with float activations."""
    resolved, target = resolve(Source(checkpoint), ExportRequest(quant=recipe)), open_target("onnx")
    times = [estimate(resolved, target, verifies).reference_seconds for verifies in (True, False)]
    assert times[0] - times[1] == pytest.approx(modes * target.costs.verification)


def test_an_export_without_enough_memory_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = psutil.virtual_memory()._replace(available=2**20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert export(["--target", "onnx", "--out", str(tmp_path / "out")]) == 3
    error = capsys.readouterr().err
    assert "needs about" in error and "0.0 GB are free" in error and not list(tmp_path.iterdir())


def test_an_up_to_date_bundle_is_accepted_without_free_memory(
    bundles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_manifest(folder := bundles / "onnx")  # is exported here, if no other test did so
    free = psutil.virtual_memory()._replace(available=2**20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert export(["--target", "onnx", *QUANT, "--out", str(folder)]) == 0
    assert read_manifest(folder) == before


@pytest.mark.parametrize(
    ("limit", "cached", "free"), [(2**30, 0, 2**20), (2**30, 2**28, 2**28 + 2**20), ("max", 0, float("inf"))]
)
def test_the_memory_limit_of_a_container_is_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | str, cached: int, free: Any
) -> None:
    for name, value in (
        ("max", limit),
        ("current", 2**30 - 2**20),
        ("stat", f"anon 5\ninactive_file {cached}\nactive_file 0"),
    ):
        (tmp_path / f"memory.{name}").write_text(f"{value}\n")
    monkeypatch.setattr("voxport.export.memory.CGROUP", tmp_path)
    check_memory(min(free, 2**21), "model", "wait")
    if free == float("inf"):
        return
    with pytest.raises(ExportError, match=r"model: needs about .* GB are free; .*, or wait$"):
        check_memory(free + 1, "model", "wait")
