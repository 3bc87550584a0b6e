"""The modes in which a bundle is verified: the arithmetic, the device, and how much is compared."""

from dataclasses import dataclass, replace

from voxport.export.resolve import Resolved
from voxport.export.targets.base import Target
from voxport.runtime.engines.base import DEFAULT, EngineOptions

MAX_ROWS = 24  # rows in the longest call
OTHER_STEPS = 200  # steps of the long run in modes after the first one


@dataclass(frozen=True)
class VerifyOptions:
    """How a bundle is verified.

    `steps` is the number of decode steps of the long run in the first mode, and of frames of the long codes.
    `engine`: how the artifact runs; without a precision, in those of the target one after the other.
    `long_codes`: whether the codes of many frames of a large model are compared.
    """

    steps: int = 1000
    engine: EngineOptions = DEFAULT
    long_codes: bool = False


DEFAULTS = VerifyOptions()


@dataclass(frozen=True)
class Extent:
    """How much is compared. With 0 steps, frames or runs, a check does not run.

    `sizes` are sizes of a dynamic dimension; they are short, because a tie in one call of many rows affects
    all of them.
    """

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    sizes: tuple[int, ...] = (1, 2, 5, MAX_ROWS)
    steps: int = 1000  # at most, of the long run
    chunked: int = 125  # frames of the run in chunks
    run_steps: int = 40  # steps of a teacher-forced run
    free_steps: int = 40  # steps of a free run
    replay_steps: int = 6  # steps of each of the two runs that are repeated
    past_window: int = 2  # steps past the last row of a sliding-window cache
    frames: int = 0  # at most, of the long codes
    is_sample: bool = False  # the model is large, and its eager steps take seconds

    def __str__(self) -> str:
        counts = ((len(self.seeds), "seed"), (self.steps, "decode step"))
        seeds, steps = (f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
        return (
            f"{seeds}, up to {max(self.sizes)} rows, {steps}, {self.chunked} frames in chunks, "
            f"runs of {self.run_steps}"
        )


WHOLE = Extent()
# For billions of weights: a step of the reference takes seconds.
SAMPLE = Extent(
    seeds=(1,),
    sizes=(2, MAX_ROWS),
    steps=4,
    chunked=8,
    run_steps=3,
    free_steps=3,
    replay_steps=1,
    is_sample=True,
)
# In addition, a call of the artifact takes seconds.
SMOKE = replace(
    SAMPLE, sizes=(MAX_ROWS,), steps=0, chunked=4, run_steps=1, free_steps=0, replay_steps=0, past_window=1
)
# Rounding of a known size. The other modes have checked the same logic.
SINGLE_CALLS = replace(SMOKE, sizes=(2,), chunked=0, run_steps=0)


@dataclass(frozen=True)
class Mode:
    """A way in which the artifact runs, here in `precision`, and how much is compared.

    With `float_activations`, neither the artifact nor eager rounds activations. This is not how the runtime
    runs it, but no tie hides an error. `counts_ties`: whether eager measures how many calls meet a tie; not
    if a mode with float activations came before, or too few calls are compared. In the first mode, each graph
    has its single calls checked when it is lowered.
    """

    options: VerifyOptions
    precision: str | None
    extent: Extent
    float_activations: bool = False
    counts_ties: bool = True
    is_first: bool = False

    @property
    def suffix(self) -> str:
        texts = (self.precision, "float activations" if self.float_activations else None)
        return "".join(f", {text}" for text in texts if text)


def modes(resolved: Resolved, target: Target, options: VerifyOptions) -> list[Mode]:
    """The mode with the tightest bars is the first one, and has the whole long run. The first mode with the
    runtime's own arithmetic has the long codes.
    """
    is_large = resolved.source.is_large
    schemes = [scheme for recipe in resolved.recipes.values() for scheme in recipe.schemes]
    has_integers = any(scheme.integer_activations(target.has_integer_kernels) for scheme in schemes)
    float_first = has_integers and target.has_float_activations
    found: list[Mode] = []
    chosen = options.engine.compute_precision
    for precision in (chosen,) if chosen else target.verification_precisions:
        whole = WHOLE if not is_large else SMOKE if target.is_slow(precision) else SAMPLE
        if target.sums_in_float16(precision):
            whole = replace(SINGLE_CALLS, is_sample=is_large)
        for as_floats in (True, False) if float_first else (False,):
            steps = min(options.steps, whole.steps, OTHER_STEPS if found else whole.steps)
            extent = replace(whole, steps=steps)
            if as_floats:
                extent = replace(extent, free_steps=0, replay_steps=0)
            elif not any(mode.extent.frames for mode in found) and (options.long_codes or not is_large):
                extent = replace(extent, frames=options.steps)
            counts_ties = not (float_first or is_large)
            found.append(Mode(options, precision, extent, as_floats, counts_ties, not found))
    return found
