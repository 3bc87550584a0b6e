"""Bundles for the runners of `examples`, one of each family, with `vectors.json`."""

from pathlib import Path

import pytest
from support.export.cache import ExportCache
from support.export.short_verification import few_calls

from voxport.bundle.manifest import Bundle
from voxport.model.synthetic.checkpoint import write_checkpoint


@pytest.fixture(scope="session")
def family_bundles(
    trained_bundles: dict[str, Path], exports: ExportCache, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Folders by family: the embedded models, and a Qwen3-TTS with speakers."""
    made = tmp_path_factory.mktemp("qwen")
    write_checkpoint(made / "checkpoint", "micro-custom-voice", key="qwen3_tts")
    options = ["--target", "onnx", "--checkpoint", str(made / "checkpoint"), "--quant", "w8"]
    qwen = exports.export(made / "bundle", *options, checks=few_calls)
    found = {Bundle(folder).job.family: folder for folder in trained_bundles.values()}
    return {**found, "qwen3_tts": qwen}
