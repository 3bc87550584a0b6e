"""Builds and edits the packages that the tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import coremltools as ct

MODEL, WEIGHTS = "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin"


def save(program: Any, path: Path, precision: Any = None) -> Path:
    precision = precision or ct.precision.FLOAT32
    ct.convert(
        program, minimum_deployment_target=ct.target.iOS18, compute_precision=precision, skip_model_load=True
    ).save(str(path))
    return path


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Changes the specification of a package."""
    spec = ct.utils.load_spec(str(path / MODEL))
    change(spec)
    (path / MODEL).write_bytes(spec.SerializeToString())
