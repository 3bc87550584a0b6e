"""The table of targets. A target's packages are imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from export.lowering import ExportError, Lowering
from quantize.recipe import RecipeError

TARGETS = {
    "onnx": ("export.onnx", "OnnxLowering", ("onnx", "onnxscript", "onnxruntime")),
    "executorch": ("export.executorch", "ExecuTorchLowering", ("executorch",)),
    "coreml": ("export.coreml", "CoreMLLowering", ("coremltools",)),
}


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
        raise ExportError(f"target {name}: {', '.join(missing)} not installed; run: pip install 'voxport[export]'")
    return getattr(import_module(module), attribute)()
