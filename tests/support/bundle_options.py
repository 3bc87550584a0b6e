"""Options of the bundles that tests share, and changes to a bundle on disk."""

import json
from collections.abc import Callable
from pathlib import Path

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import file_entry

WIDE = "layers.0.attention.wo=w4g128"
QUANT = [
    "--quant",
    "w4",
    "--quant-for",
    "codec=w8",
    "--quant-rule",
    WIDE,
    "--cache-length",
    "1024",
    "--euler-steps",
    "3",
]  # groups of 32 and of 128, and per channel, in one bundle; fewer Euler steps than published


def edit_manifest(bundle: Path, change: Callable[[Json], object]) -> None:
    """Changes the content of the manifest in place."""
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def write_hashes(bundle: Path, *names: str) -> None:
    """Writes the hashes of damaged files into the manifest, which hides the damage."""
    edit_manifest(
        bundle,
        lambda content: content["files"].update(
            {name: file_entry(bundle / name).model_dump() for name in names}
        ),
    )
