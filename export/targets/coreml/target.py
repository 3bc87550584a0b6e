"""The target Core ML, for iOS 18 and macOS 15."""

import sys

from voxport.bundle.spec import Dtype
from voxport.export.targets.base import Costs, PackageTarget

IS_MACOS = sys.platform == "darwin"


class CoreMLTarget(PackageTarget):
    """The precision float32 is for comparison, and runs on CPU and GPU only: the Neural Engine computes in
    float16.
    """

    name = "coreml"
    packages = ("coremltools",)
    suffix = ".mlpackage"
    costs = Costs(lowering=2.7, running=1.8, product=0.45, verification=40, sample=16)
    state_notes = """\
For iOS 18, macOS 15 or newer. Each entry point is a function of its package. Load it with
`MLModelConfiguration.functionName`. States are Core ML states. Make one state object per package and
utterance, and pass it to every function of that package. Refuse a position beyond the end of a cache without
a window: the result is undefined. Integers are int32 and states float16, as the tables below say. Logits of
compressed weights are rounded to float16. `manifest.json` has the names and dtypes that all targets share.
Use the compute units `cpuAndGPU`, which the graphs are laid out for.
"""
    runners = ("Core ML", "reference executor") if IS_MACOS else ("reference executor", "Core ML")
    verification_precisions = ("float32", None if IS_MACOS else "float16")

    def runs_in_float16(self, precision: str | None, exceeds_float16: bool = False) -> bool:
        return precision != "float32"

    def is_slow(self, precision: str | None) -> bool:
        return precision is not None  # the reference executor

    def state_dtype(self, dtype: Dtype, exceeds_float16: bool = False) -> Dtype:
        return "float16"
