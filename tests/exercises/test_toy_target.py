"""A target that no package file mentions: from a checkpoint to a verified bundle to speech."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bundle_options import write_hashes
from support.export.short_verification import shorten_verification
from support.runtime.opened_tasks import open_speech

from voxport.bundle.manifest import Bundle
from voxport.export.__main__ import main as export
from voxport.runtime.__main__ import main as runtime_command


@pytest.fixture(scope="module", params=["none", "w8"])
def bundle(
    request: pytest.FixtureRequest,
    toy_checkpoint: Path,
    numpy_target: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    out = tmp_path_factory.mktemp("bundle") / request.param
    arguments = ["--checkpoint", str(toy_checkpoint), "--quant", request.param, "--out", str(out)]
    with shorten_verification():
        assert export(["--target", numpy_target, *arguments]) == 0
    return Path(out)


def test_it_makes_a_bundle_that_passed_every_check(bundle: Path) -> None:
    found = Bundle(bundle)
    assert found.is_verified and found.manifest.executed_by == "NumPy"
    assert found.component("prefill").file == "decoder.npz"
    signature: Any = found.component("prefill").signature
    assert signature.cache.cache.layout == "BSHD"


def test_its_engine_speaks_and_is_timed(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = list(open_speech(bundle).speak("hello", verbatim=True, max_frames=9))
    assert 0 < len(frames) <= 9 and all(frame.shape == (32,) for frame in frames)
    assert np.isfinite(frames).all()
    assert runtime_command(["bench", str(bundle), "--frames", "2"]) == 0
    assert "numpy" in capsys.readouterr().out


def test_a_changed_weight_fails(
    bundle: Path,
    toy_checkpoint: Path,
    short_verification: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    path = damaged / "decoder.npz"
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays["head.weight"][3, 4] += 1
    np.savez(path, **arrays)
    verify = ["verify", str(damaged), "--checkpoint", str(toy_checkpoint), "--steps", "20"]
    assert export(verify) == 5  # the hash
    write_hashes(damaged, path.name)
    capsys.readouterr()
    assert export(verify) == 4  # the numbers
    assert "y" in capsys.readouterr().err


def test_another_family_is_refused_in_one_line(
    numpy_target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(["--target", numpy_target, "--out", str(tmp_path / "out")]) == 3
    assert "numpy holds the decoder of the toy family only" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_it_is_listed(numpy_target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(["list"]) == 0
    listed = capsys.readouterr().out
    assert "targets     onnx, executorch, coreml, coreai, numpy" in listed
    assert "default     w8g32    for coreai\ndefault     none     for numpy" in listed
    assert "note        coreai, GPU: w8g32 or w4;" in listed
