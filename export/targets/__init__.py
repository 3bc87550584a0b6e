"""The table of targets. A target's packages are imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bundle.errors import ExportError, RecipeError
from quantize.recipe import Recipe
from quantize.schemes import Scheme

if TYPE_CHECKING:
    from export.targets.base import Lowering

TARGETS = {
    "onnx": ("export.targets.onnx", "OnnxLowering", ("onnx", "onnxscript", "onnxruntime")),
    "executorch": ("export.targets.executorch", "ExecuTorchLowering", ("executorch",)),
    "coreml": ("export.targets.coreml.lowering", "CoreMLLowering", ("coremltools",)),
}

SCHEME_TARGETS = {"palette": frozenset({"coreml"})}  # scheme types that only some targets can store
HALVES = ("coreml",)  # hold what stays in floating point in half precision, unless asked for more


def parse_targets(text: str) -> tuple[str, ...]:
    """`onnx,coreml` -> its parts, in order and once each. Raises RecipeError (usage) on an unknown one."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in TARGETS:
            raise RecipeError(f"target {name!r} is unknown; there are {', '.join(TARGETS)}", field="target")
    return names


def compute_precision(target: str, asked: str | None = None) -> str:
    """In which a target holds and computes what stays in floating point. Raises RecipeError (usage) where it has no choice."""
    if asked is not None and target not in HALVES:
        raise RecipeError(
            f"compute_precision {asked}: for {', '.join(HALVES)}; {target} computes in float32",
            field="compute_precision",
        )
    return asked or ("float16" if target in HALVES else "float32")


def check_recipes(target: str, recipes: Iterable[Recipe]) -> None:
    """Raises RecipeError (usage) if a target cannot store the weights of a recipe."""
    for recipe in recipes:
        for scheme in recipe.schemes:
            allowed = targets_of(scheme)
            if allowed is not None and target not in allowed:
                raise RecipeError(
                    f"recipe {recipe.name}: {target} cannot store {scheme.type} weights, only"
                    f" {', '.join(sorted(allowed))} can; use w4 for {target}"
                )


def targets_of(scheme: Scheme) -> frozenset[str] | None:
    """Names of the targets that can store weights in `scheme`. None means every target."""
    return SCHEME_TARGETS.get(scheme.type, scheme.targets)


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
