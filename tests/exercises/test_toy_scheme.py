"""A scheme that no package file mentions: from a checkpoint to verified bundles to speech."""

from pathlib import Path

import numpy as np
import pytest
from exercises.toy_scheme import Int6Linear, Int6Scheme
from support.export.short_verification import shorten_verification
from support.runtime.opened_tasks import open_speech

from voxport.bundle.manifest import Bundle, ExportRequest
from voxport.export.__main__ import main as export
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets.coreml.target import CoreMLTarget
from voxport.export.verify.eager import check_signatures
from voxport.quantize.modules import float_activations
from voxport.quantize.recipe import RECIPES, Recipe
from voxport.quantize.schemes import IntegerScheme

TARGETS = ("onnx", "executorch", "coreml")


@pytest.fixture(scope="module", autouse=True)
def registered(table_rows: pytest.MonkeyPatch) -> None:
    table_rows.setitem(RECIPES, "int6", Recipe("int6", linears=Int6Scheme(), tables=IntegerScheme(8)))


@pytest.fixture(scope="module")
def toy_bundles(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("toys") / "all"
    arguments = ["--checkpoint", str(toy_checkpoint), "--quant", "int6", "--out", str(out)]
    with shorten_verification():
        assert export(["--target", ",".join(TARGETS), *arguments]) == 0
    return out


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_lowers_its_module_and_speaks(
    toy_bundles: Path, toy_checkpoint: Path, target: str
) -> None:
    bundle = Bundle(toy_bundles / target)
    assert bundle.is_verified and bundle.component("prefill").recipe == "int6"
    linears = resolve(Source(toy_checkpoint), bundle.job.request).recipes["decoder"].linears
    assert linears and linears.to_entry() == bundle.job.recipes["decoder"].linears
    assert 0.001 < bundle.manifest.weight_errors["decoder"].searched < 0.05
    frames = list(open_speech(toy_bundles / target).speak("hello", verbatim=True, max_frames=5))
    assert frames and np.isfinite(frames).all()


def test_linears_of_it_are_fused(checkpoint: Path) -> None:
    graph = Model(resolve(Source(checkpoint), ExportRequest(quant="int6")), "BSHD").graph("backbone")
    assert any(isinstance(part, Int6Linear) for part in graph.module.modules())
    check_signatures(graph, "BSHD", float_activations)


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
    assert "onnx cannot store such int6 weights, only coreml can" in capsys.readouterr().err
