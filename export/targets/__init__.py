"""The table of targets. A target's packages are imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bundle.errors import ExportError, RecipeError
from quantize.recipe import Recipe

if TYPE_CHECKING:
    from export.targets.base import Lowering

TARGETS = {
    "onnx": ("export.targets.onnx", "OnnxLowering", ("onnx", "onnxscript", "onnxruntime")),
    "executorch": ("export.targets.executorch", "ExecuTorchLowering", ("executorch",)),
    "coreml": ("export.targets.coreml.lowering", "CoreMLLowering", ("coremltools",)),
}

PALETTES = ("coreml",)  # hold weights as tables of values
HALVES = ("coreml",)  # hold what stays in floating point in half precision, unless asked for more


def parse_targets(text: str) -> tuple[str, ...]:
    """`onnx,coreml` -> its parts, in order and once each. Raises RecipeError (usage) on an unknown one."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in TARGETS:
            raise RecipeError(f"--target {name!r} is unknown; there are {', '.join(TARGETS)}")
    return names


def compute_precision(target: str, asked: str | None = None) -> str:
    """In which a target holds and computes what stays in floating point. Raises RecipeError (usage) where it has no choice."""
    if asked is not None and target not in HALVES:
        raise RecipeError(
            f"--compute-precision {asked}: for {', '.join(HALVES)}; {target} computes in float32"
        )
    return asked or ("float16" if target in HALVES else "float32")


def check_recipes(target: str, recipes: Iterable[Recipe]) -> None:
    """Raises RecipeError (usage) where a target cannot hold weights as a recipe says."""
    for recipe in recipes:
        schemes = [
            recipe.linears,
            recipe.tables,
            *(scheme for rule in recipe.rules for scheme in (rule.linears, rule.tables)),
        ]
        if target not in PALETTES and any(scheme and scheme.channels for scheme in schemes):
            raise RecipeError(
                f"recipe {recipe.name}: palettes are {', '.join(PALETTES)}'s own; for {target} take w4"
            )


def float_bytes(target: str, asked: str | None = None) -> int:
    return 2 if compute_precision(target, asked) == "float16" else 4


def open_target(name: str, asked: str | None = None) -> Lowering:
    """`asked` is a compute precision. Raises ExportError when a package of the target is not installed."""
    precision = compute_precision(name, asked)
    module, attribute, packages = TARGETS[name]
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ExportError(
            f"target {name}: {', '.join(missing)} not installed; install voxport with its extra [export]: pip install '.[export]' in its folder"
        )
    return getattr(import_module(module), attribute)(*[precision] if name in HALVES else [])
