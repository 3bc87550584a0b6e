"""A family that no package file mentions: from a checkpoint to verified bundles to speech."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from exercises.toy_model.graphs import Decoder
from support.model.changed import changed
from support.runtime.opened_tasks import open_speech

import voxport
import voxport.runtime.families
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.export.__main__ import main as export
from voxport.model.families import open_family
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.runtime.__main__ import main as runtime_command

TARGETS = ("onnx", "executorch")


@pytest.fixture(scope="module")
def bundles(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle per target, with the family's own option."""
    out = tmp_path_factory.mktemp("bundles")
    arguments = ["--checkpoint", str(toy_checkpoint), "--quant", "w8", "--loud", "--out", str(out)]
    assert export(["--target", ",".join(TARGETS), *arguments]) == 0
    return out


def verify(bundle: Path, checkpoint: Path) -> int:
    return export(["verify", str(bundle), "--checkpoint", str(checkpoint), "--steps", "20"])


@pytest.mark.parametrize("target", TARGETS)
def test_it_becomes_a_bundle_that_passed_every_check(bundles: Path, target: str) -> None:
    bundle = Bundle(bundles / target)
    assert bundle.is_verified and bundle.component("decode_step").recipe == "w8"
    checks = {row["check"].partition(":")[0] for row in bundle.manifest.verification.rows}
    assert checks >= {"outputs", "states", "104 steps", "last position", "reset and replay"}
    assert checks >= {"written rows", "codes, teacher-forced", "free run"}


def test_it_speaks_the_same_letters_on_every_target(bundles: Path) -> None:
    spoken = {}
    for target in TARGETS:
        task = open_speech(bundles / target)
        assert isinstance(task, voxport.TextToSpeech)
        frames = list(task.speak("hello", verbatim=True, max_frames=9))
        spoken[target] = np.stack(frames).argmax(axis=1)
    assert 0 < len(spoken["onnx"]) <= 9
    assert all(np.array_equal(letters, spoken["onnx"]) for letters in spoken.values())


def test_its_requests_are_checked(bundles: Path) -> None:
    task = open_speech(bundles / "onnx")
    with pytest.raises(UsageError, match="letters"):
        list(task.speak("HELLO", verbatim=True))
    with pytest.raises(UsageError, match="no room"):
        list(task.speak("a" * 128, verbatim=True))


@pytest.mark.parametrize("target", TARGETS)
def test_a_reference_that_ignores_the_cache_does_not_match(
    bundles: Path,
    toy_checkpoint: Path,
    target: str,
    short_verification: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault of the cache, planted on the other side, where every target has it in the same place."""
    computed = Decoder.forward
    monkeypatch.setattr(Decoder, "forward", lambda *given: cast(Any, computed)(*given[:-1], given[-1] * 0))
    assert verify(bundles / target, toy_checkpoint) == 4
    assert "decode_step.y" in capsys.readouterr().err


def test_every_runtime_command_takes_it(
    bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, inputs = str(bundles / "onnx"), tmp_path / "ids.npz"
    np.savez(inputs, ids=np.array([3, 1, 4]))
    wav, traced = str(tmp_path / "a.wav"), tmp_path / "out.npz"
    assert (
        runtime_command(["say", "hello", "--verbatim", "--max-frames", "5", "--bundle", bundle, "-o", wav])
        == 0
    )
    assert runtime_command(["trace", bundle, "--inputs", str(inputs), "-o", str(traced)]) == 0
    assert np.load(traced)["logits"].shape == (32,)
    assert runtime_command(["info", bundle]) == 0
    assert "options: loud True" in capsys.readouterr().out
    assert runtime_command(["bench", bundle, "--frames", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["components"]["decode_step"]["calls"] == 5


def test_faults_of_a_new_family_are_named(
    toy_checkpoint: Path, table_rows: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    family = open_family("toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(voxport.runtime.families.FAMILIES, "other", "exercises.toy_runtime")
        with pytest.raises(UsageError, match=r"FAMILY\.name is 'toy', expected 'other'"):
            voxport.runtime.families.open_family("other")
        without = changed(family, synthetic=changed(family.synthetic, documents=lambda size: {}))
        patch.setattr("exercises.toy_model.family.FAMILY", without)
        with pytest.raises(UsageError, match=r"tiny lacks .*Synthetic\.documents"):
            write_checkpoint(tmp_path / "out", key="toy")
    assert not list(tmp_path.iterdir())
