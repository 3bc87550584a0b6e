"""The target Core AI, for iOS 27 and macOS 27."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from voxport.bundle.manifest import Bundle, Precision
from voxport.bundle.spec import Dtype
from voxport.export.targets.base import Costs, PackageTarget

if TYPE_CHECKING:
    from voxport.runtime.engines.base import Engine, EngineOptions

SYSTEMS = ("macOS", "Linux") if sys.platform == "darwin" else ("Linux", "macOS")
# What is executed of a float16 program, for the manifest.
COPIES = "copies in float32 and with float32 sums, with decoded weights if small, and single calls as stored"


class CoreAITarget(PackageTarget):
    """Core AI's runtime for Linux sums products of float16 in float16, which no device is known to do. So a
    float16 program is verified in three precisions. `float32` runs a copy in which every value is widened,
    `float16` a copy in which products are summed in float32. Both copies have decoded weights if the graph is
    small. `stored` runs the program as it is, in single calls. A float32 program runs as it is.
    """

    name = "coreai"
    packages = ("coreai", "coreai_torch")
    extra = "export,coreai-export"
    suffix = ".aimodel"
    costs = Costs(lowering=1.25, running=2.1, product=0.2, verification=35, sample=70)
    default_recipe = "w8g32"
    recipe_notes = """\
GPU: w8g32 or w4; w8 gave wrong values on beta versions (public reports, not tried here).
Neural Engine: lut4g32, lut4 or lut4g8; groups do not compile (public reports, not tried here).
"""
    state_notes = f"""\
For iOS 27, macOS 27 or newer. Each entry point is a function of its asset. Load an asset once, and its
functions by name: in Swift `AIModel(contentsOf:)`, `loadFunction(named:)`, `run(inputs:states:)`. Calls take
inputs and states by name, and change the states. Take outputs by name too: their order varies. Make one set
of states per asset and stream, once, filled with zeros, and pass the same arrays to every function of that
asset. Memory that is not cleared gives NaN, also behind a mask. Refuse a position beyond the end of a cache
without a window: the result is undefined. Integers are int32, inputs and outputs float32, and states as the
tables below say. Use the names and dtypes of this page: `manifest.json` has those that all targets share.
Norms, and all from the last product to logits and latents, are float32.

Name a compute unit: by public reports, `preferred .cpu` spreads a graph over all units and is not exact. The
Neural Engine wants fixed sizes. docs/coreai.md of voxport sets them in an asset, and has the sources.
{recipe_notes}"""
    runners = tuple(f"Core AI for {name}: {COPIES}" for name in SYSTEMS)
    verification_precisions: tuple[str | None, ...] = ("float32", "float16", "stored")

    def __init__(self, compute_precision: Precision | None = None):
        super().__init__(compute_precision)
        if self.compute_precision == "float32":
            self.verification_precisions = ("float32",)
            self.runners = tuple(f"Core AI for {name}" for name in SYSTEMS)

    def check_files(self, bundle: Bundle) -> None:
        for name in sorted({entry.file for entry in bundle.components}):
            self._module("read_back").check_parsed(bundle.folder / name)

    def runs_in_float16(self, precision: str | None, exceeds_float16: bool = False) -> bool:
        return precision != "float32" and not exceeds_float16

    def sums_in_float16(self, precision: str | None) -> bool:
        return precision == "stored"

    def is_slow(self, precision: str | None) -> bool:
        return True

    def open_artifacts(
        self, bundle: Bundle, options: EngineOptions, float_activations: bool = False
    ) -> Engine:
        precision, options = options.compute_precision, replace(options, compute_precision=None)
        if self.compute_precision == "float32" or precision == "stored":
            return super().open_artifacts(bundle, options)
        from voxport.export.targets.coreai.copies import open_copies

        return open_copies(bundle, options, "float32" if precision == "float32" else "float16")

    def state_dtype(self, dtype: Dtype, exceeds_float16: bool = False) -> Dtype:
        return "float32" if exceeds_float16 else self.compute_precision
