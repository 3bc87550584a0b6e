"""The table of targets. A target's packages are imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from export.errors import ExportError
from quantize.recipe import RecipeError

if TYPE_CHECKING:
    from export.lowering import Lowering

TARGETS = {
    "onnx": ("export.onnx", "OnnxLowering", ("onnx", "onnxscript", "onnxruntime")),
    "executorch": ("export.executorch", "ExecuTorchLowering", ("executorch",)),
    "coreml": ("export.coreml", "CoreMLLowering", ("coremltools",)),
}

FLOAT_BYTES = {"onnx": 4, "executorch": 4, "coreml": 2}  # of what stays in floating point


def parse_targets(text: str) -> tuple[str, ...]:
    """`onnx,coreml` -> its parts, in order and once each. Raises RecipeError (usage) on an unknown one."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in TARGETS:
            raise RecipeError(f"--target {name!r} is unknown; there are {', '.join(TARGETS)}")
    return names


def open_target(name: str) -> Lowering:
    """Raises ExportError when a package of the target is not installed."""
    module, attribute, packages = TARGETS[name]
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ExportError(f"target {name}: {', '.join(missing)} not installed; install voxport with its extra [export]: pip install '.[export]' in its folder")
    return getattr(import_module(module), attribute)()
