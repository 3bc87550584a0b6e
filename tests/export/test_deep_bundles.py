"""Verified bundles of several layers, code books and codec stages; other tests use models of one layer."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from support.export.cache import ExportCache
from support.export.short_verification import few_calls

from voxport.bundle.manifest import read_manifest
from voxport.export.targets import TARGETS
from voxport.model.synthetic.checkpoint import random_checkpoint

RECIPES = {"voxtral_tts": "w4", "voxtral_realtime": "8da4w", "qwen3_tts": "w4"}


@pytest.mark.slow
@pytest.mark.parametrize("family", RECIPES)
@pytest.mark.parametrize("target", TARGETS)
def test_a_model_of_several_layers_becomes_a_verified_bundle(
    exports: ExportCache, tmp_path: Path, family: str, target: str
) -> None:
    arguments = ["--checkpoint", str(random_checkpoint(family)), "--target", target]
    arguments += ["--quant", RECIPES[family], "--cache-length", "96"]
    checks = nullcontext if target == "onnx" else few_calls
    bundle = exports.export(tmp_path / "bundle", *arguments, checks=checks)
    assert read_manifest(bundle).verification.status == "passed"
