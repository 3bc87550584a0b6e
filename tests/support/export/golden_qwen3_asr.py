"""Bundles of the golden checkpoints of Qwen3-ASR, in full precision."""

from pathlib import Path

from support.export.cache import ExportCache
from support.paths import GOLDEN

FOLDER = GOLDEN / "qwen3_asr"


def exported(exports: ExportCache, kind: str, folder: Path) -> Path:
    arguments = ["--checkpoint", str(FOLDER / kind), "--target", "onnx", "--quant", "none", "--no-verify"]
    exports.export(folder / kind, *arguments, "--cache-length", "512")
    return folder / kind
