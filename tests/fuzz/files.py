"""What areas of hostile input start from, and how they change it."""

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from voxport.bundle.manifest import MANIFEST, file_entry

OUT = "out.wav"
SPEAK = ("--max-frames", "2", "--threads", "1", "-o", OUT)


@dataclass(frozen=True)
class Sources:
    """Undamaged bundles and checkpoints. Areas copy them."""

    speech: Path  # text to speech, ONNX
    recognition: Path  # speech to text, ONNX
    executorch: Path
    coreml: Path
    cloning: Path  # text to speech with voices from recordings, ONNX
    checkpoints: tuple[Path, ...]
    converted: tuple[Path, ...]  # the same for mlx-audio, with integers and without
    prefixes: Path  # a cache folder that `speech` has filled


def copy(source: Path, folder: Path) -> Path:
    return Path(shutil.copytree(source, folder / "input"))


def write_hash(rng: random.Random, bundle: Path, path: Path) -> None:
    """Usually writes the hash of the damaged file into the manifest, as the author of a bundle could."""
    if rng.random() < 0.85:
        document = json.loads((bundle / MANIFEST).read_text())
        document["files"][path.relative_to(bundle).as_posix()] = file_entry(path).model_dump()
        (bundle / MANIFEST).write_text(json.dumps(document))
