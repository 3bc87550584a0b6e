"""The table of targets. Opening a target imports neither torch nor the packages of the target."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from voxport.bundle.errors import RecipeError
from voxport.bundle.names import did_you_mean, find_name
from voxport.quantize.recipe import Recipe
from voxport.quantize.schemes import Scheme

if TYPE_CHECKING:
    from voxport.bundle.manifest import ExportJob
    from voxport.export.targets.base import Target

# Name of a target: module and class. Each has a row in `runtime.engines`, which runs its artifacts.
TARGETS: dict[str, tuple[str, str]] = {
    "onnx": ("voxport.export.targets.onnx.target", "OnnxTarget"),
    "executorch": ("voxport.export.targets.executorch.target", "ExecuTorchTarget"),
    "coreml": ("voxport.export.targets.coreml.target", "CoreMLTarget"),
    "coreai": ("voxport.export.targets.coreai.target", "CoreAITarget"),
}
NEAREST = {  # patterns of names in other programs
    r"tf-?lite|tf|litert|qnn|xnnpack|vulkan|pte|android|mobile": "executorch",
    r"openvino|ov|tensorrt|trt|ort|onnx-?runtime|directml|webgpu|wasm|cuda|gguf|ggml|torchscript": "onnx",
    r"core-?ml-?tools|ml(model|package|program)|(ios|macos)[-_]?(1[5-8]|26)": "coreml",
    r"core[-_ ]?ai.*|ai-?model|(ios|macos)[-_]?27": "coreai",
    r"ios|macos|apple|ane": "coreml, or coreai from iOS 27 and macOS 27 on",
    r"mlx": "coreml or coreai for Apple devices; `convert` writes weights for mlx",
    r"all|any|\*": "onnx and the other targets, separated by commas",
}


def parse_targets(text: str) -> tuple[str, ...]:
    """`onnx,coreml` -> names in order, each once. Raises RecipeError for an unknown name."""
    names = tuple(dict.fromkeys(find_name(part.strip(), TARGETS) for part in text.split(",")))
    for name in names:
        _target_class(name)
    return names


def open_target(name: str, precision: str | None = None) -> Target:
    """The target called `name`. `precision` is the compute precision, if the request gives one.

    Raises RecipeError if the target does not offer a choice of precision, or not this one.
    """
    target = _target_class(name)
    offered = target.compute_precisions
    if precision is not None and (len(offered) == 1 or precision not in offered):
        having = [other for other in TARGETS if len(_target_class(other).compute_precisions) > 1]
        raise RecipeError(
            f"compute_precision {precision}: for {', '.join(having)}; {name} computes in"
            f" {' or '.join(offered)}",
            field="compute_precision",
        )
    return target(next((own for own in offered if own == precision), offered[0]))


def default_recipes() -> dict[str, str]:
    """The recipe of an export that names none, by target."""
    return {name: _target_class(name).default_recipe for name in TARGETS}


def target_of_job(job: ExportJob) -> Target:
    """The target of an existing bundle, in its compute precision if the target has that one, else in the
    default.
    """
    target = _target_class(job.target)
    return target(job.compute_precision if job.compute_precision in target.compute_precisions else None)


def check_recipes(target: Target, recipes: Iterable[Recipe]) -> None:
    """Raises RecipeError if the target cannot store the weights of a recipe."""
    is_default = target.compute_precision == target.compute_precisions[0]
    name = target.name if is_default else f"{target.name} in {target.compute_precision}"
    for recipe in recipes:
        for scheme in recipe.schemes:
            if not target.holds(scheme):
                raise RecipeError(
                    f"recipe {recipe.name}: {name} cannot store such {scheme.type} weights"
                    f"{_activations(scheme)}, only"
                    f" {', '.join(targets_that_hold(scheme)) or 'no target'} can; use w8 or w4 for {name}"
                )


def _activations(scheme: Scheme) -> str:
    if scheme.integer_activations(False):
        return " with integer activations"
    return (
        "" if scheme.needs_native_support or scheme.integer_activations(True) else " with float activations"
    )


def targets_that_hold(scheme: Scheme) -> tuple[str, ...]:
    """Names of the targets that can store weights in `scheme`, sorted."""
    return tuple(sorted(name for name in TARGETS if open_target(name).holds(scheme)))


def _target_class(name: str) -> type[Target]:
    if name not in TARGETS:
        known = f"{', '.join(TARGETS)}{did_you_mean(name, TARGETS, NEAREST)}"
        raise RecipeError(f"target {name!r} is unknown; there are {known}", field="target")
    module, attribute = TARGETS[name]
    target: type[Target] = getattr(import_module(module), attribute)
    return target
