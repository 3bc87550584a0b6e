"""What a manifest says beyond the components: sources, tools, licence."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

from runtime.bundle import FileEntry, file_entry

LICENCE = {
    "checkpoint": "that of the checkpoint; the published Voxtral-4B-TTS weights and voices are CC BY-NC 4.0, not for commercial use",
    "embedded": "none needed: random weights",
}


def source_files(checkpoint: Path) -> dict[str, FileEntry]:
    """Hash and size of every file that a bundle is made from."""
    names = ["params.json", "consolidated.safetensors", "tekken.json"]
    names += sorted(f"voice_embedding/{path.name}" for path in (checkpoint / "voice_embedding").glob("*.pt"))
    return {name: file_entry(checkpoint / name) for name in names if (checkpoint / name).is_file()}


def tool_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions that decide the bytes of an artifact, our own code's by its content."""
    versions = {package: version(package) for package in sorted({*packages, "torch", "torchao"})}
    return versions | {"voxport": _code_hash()}


@cache
def _code_hash() -> str:
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for package in ("export", "model", "quantize", "runtime"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
