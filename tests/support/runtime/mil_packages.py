"""Builds and edits the packages that the tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np

from runtime.mil import Executor, Package

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


def run(path: Path) -> np.ndarray:
    executor = Executor(Package(path).function())
    return executor.run({"x": np.ones((2, 16), np.float32)}, executor.new_states())["y"]


def main_block(spec: Any) -> Any:
    return spec.mlProgram.functions["main"].block_specializations["CoreML8"]


def operation(spec: Any, kind: str) -> Any:
    return next(op for op in main_block(spec).operations if op.type == kind)
