"""The ways in which a bundle is verified: the arithmetic, the device and the length of the long run."""

from dataclasses import dataclass

from voxport.export.resolve import Resolved
from voxport.export.targets.base import Target
from voxport.export.verify.context import LONG_CODES
from voxport.runtime.engines.base import EngineOptions

DEFAULT_STEPS, OTHER_STEPS = 1000, 200  # of the long run: in the first precision, and in the others


@dataclass(frozen=True)
class VerifyOptions:
    """How a bundle is verified.

    `steps` is the number of decode steps of the long run in the first precision. `precisions` are those in
    which the artifact runs (default: those of the target). `compute_units` are the processors that Core ML
    uses where it runs natively. `device` is that of an ONNX bundle. `long_codes`: whether codes over many
    frames are compared where full precision is large.
    """

    steps: int = DEFAULT_STEPS
    precisions: tuple[str | None, ...] | None = None
    compute_units: str | None = None
    device: str | None = None
    long_codes: bool = False


DEFAULTS = VerifyOptions()


@dataclass(frozen=True)
class Mode:
    """A way in which the artifact runs.

    `steps` are those of the long run, `frames` those of the long codes, also of a large model where
    `long_codes` is set.
    With `float_activations`, neither the artifact nor eager rounds activations. This is not how the runtime
    runs it, but no tie hides an error. `float_first` says that another mode does so before this one.
    """

    engine: EngineOptions
    steps: int
    frames: int = 0
    float_activations: bool = False
    float_first: bool = False
    long_codes: bool = False

    @property
    def suffix(self) -> str:
        texts = (self.engine.compute_precision, "float activations" if self.float_activations else None)
        return "".join(f", {text}" for text in texts if text)

    @property
    def left_out(self) -> tuple[str, ...]:
        found = () if self.frames else (LONG_CODES,)
        return (*found, "replay", "free run") if self.float_activations else found


def modes(resolved: Resolved, target: Target, options: VerifyOptions) -> list[Mode]:
    """The mode with the tightest bars is the first one. It gets the whole long run."""
    schemes = [scheme for recipe in resolved.recipes.values() for scheme in recipe.schemes]
    has_integers = any(scheme.integer_activations(target.has_integer_kernels) for scheme in schemes)
    float_first = has_integers and target.has_float_activations
    found: list[Mode] = []
    for precision in options.precisions or target.verification_precisions:
        units = options.compute_units if precision is None else None
        engine = EngineOptions(compute_precision=precision, compute_units=units, device=options.device)
        for as_floats in (True, False) if float_first else (False,):
            steps = min(options.steps, OTHER_STEPS) if found else options.steps
            first_of_runtime = not as_floats and not any(mode.frames for mode in found)
            frames = options.steps if first_of_runtime else 0
            long_codes = options.long_codes and bool(frames)
            found.append(Mode(engine, steps, frames, as_floats, float_first and not as_floats, long_codes))
    return found
