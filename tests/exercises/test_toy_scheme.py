"""A scheme that no package file mentions: from a checkpoint to verified bundles to speech."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from exercises.toy_scheme import Int6Scheme
from support.bundle_options import write_hashes
from support.export.short_verification import shorten_verification
from support.runtime.opened_tasks import open_speech

from voxport.bundle.manifest import Bundle
from voxport.export.__main__ import main as export
from voxport.export.resolve import Source, resolve
from voxport.export.targets.coreml.target import CoreMLTarget
from voxport.quantize.recipe import RECIPES, Recipe
from voxport.quantize.schemes import IntegerScheme

TARGETS = ("onnx", "executorch", "coreml")


@pytest.fixture(scope="module", autouse=True)
def registered(table_rows: pytest.MonkeyPatch) -> None:
    table_rows.setitem(RECIPES, "int6", Recipe("int6", linears=Int6Scheme(), tables=IntegerScheme(8)))


@pytest.fixture(scope="module")
def speech_bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model whose linears are fused."""
    out = tmp_path_factory.mktemp("speech") / "int6"
    options = ["--cache-length", "1024", "--no-verify", "--out", str(out)]
    assert export(["--target", "onnx", "--quant", "int6", *options]) == 0
    return out


@pytest.fixture(scope="module")
def toy_bundles(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("toys") / "all"
    arguments = ["--checkpoint", str(toy_checkpoint), "--quant", "int6", "--out", str(out)]
    with shorten_verification():
        assert export(["--target", ",".join(TARGETS), *arguments]) == 0
    return out


@pytest.mark.slow
def test_it_becomes_a_bundle_whose_recipe_reads_back(speech_bundle: Path, checkpoint: Path) -> None:
    bundle, source = Bundle(speech_bundle), Source(checkpoint)
    backbone = bundle.component("decode_step")
    assert backbone.recipe == "int6" and 0.001 < bundle.manifest.weight_errors["backbone"].searched < 0.05
    recipe = resolve(source, bundle.job.request).recipes["backbone"]
    assert recipe.linears
    assert recipe.linears.to_entry() == bundle.job.recipes["backbone"].linears


@pytest.mark.slow
def test_its_bundle_speaks(speech_bundle: Path) -> None:
    task = open_speech(speech_bundle)
    samples = np.concatenate(list(task.speak("Hello.", max_frames=3)))
    assert len(samples) and np.isfinite(samples).all() and samples.any()


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_lowers_its_module_and_speaks(toy_bundles: Path, target: str) -> None:
    bundle = Bundle(toy_bundles / target)
    assert bundle.is_verified and bundle.component("prefill").recipe == "int6"
    frames = list(open_speech(toy_bundles / target).speak("hello", verbatim=True, max_frames=5))
    assert frames and np.isfinite(frames).all()


@pytest.mark.slow
def test_a_changed_weight_fails(
    toy_bundles: Path,
    toy_checkpoint: Path,
    short_verification: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = Path(shutil.copytree(toy_bundles / "onnx", tmp_path / "bundle"))
    path = bundle / "decoder.onnx.data"
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 16]) + content[1:])
    write_hashes(bundle, path.name)
    assert export(["verify", str(bundle), "--checkpoint", str(toy_checkpoint), "--steps", "20"]) == 4
    assert "prefill" in capsys.readouterr().err


def test_a_shape_that_does_not_fit_is_named_with_the_rule_that_helps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe("int6", linears=Int6Scheme(group=128), tables=IntegerScheme(8))
    monkeypatch.setitem(RECIPES, "int6", recipe)
    assert export(["--target", "onnx", "--quant", "int6", "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert "groups of 128 do not divide the 96 inputs of layers.0.attention.wq" in error
    assert "'*attention.wq=none'" in error


def test_a_target_that_cannot_store_it_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Int6Scheme, "needs_native_support", True)
    monkeypatch.setattr(CoreMLTarget, "native_schemes", frozenset({"int6"}))
    assert export(["--target", "onnx", "--quant", "int6", "--dry-run"]) == 2
    assert "onnx cannot store int6 weights, only coreml can" in capsys.readouterr().err
