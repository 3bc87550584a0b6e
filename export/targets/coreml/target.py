"""The target Core ML, for iOS 18 and macOS 15."""

import sys
from pathlib import Path

from voxport.bundle.manifest import Precision
from voxport.bundle.spec import Dtype, graph_state_name
from voxport.export.targets.base import RING_NOTES, Costs, EntryPoint, Graph, Target
from voxport.model.graph import Component

IS_MACOS = sys.platform == "darwin"


class CoreMLTarget(Target):
    """One `.mlpackage` per graph with a function per component. Functions share weights and states.

    The precision float32 is for comparison, and runs on CPU and GPU only: the Neural Engine computes in
    float16.
    """

    name = "coreml"
    packages = ("coremltools",)
    layout = "BHSD"
    kernel = ("voxport.export.targets.apple", "dequantized_linear")
    costs = Costs(lowering=2.7, running=1.8, product=0.45, verification=40, sample=16)
    state_notes = """\
For iOS 18, macOS 15 or newer. Each entry point is a function of its package. Load it with
`MLModelConfiguration.functionName`. States are Core ML states. Make one state object per package and
utterance, and pass it to every function of that package. Refuse a position beyond the end of a cache without
a window: the result is undefined. Integers are int32 and states float16, as the tables below say. Logits of
compressed weights are rounded to float16. `manifest.json` has the names and dtypes that all targets share.
Use the compute units `cpuAndGPU`, which the graphs are laid out for.
"""
    sliding_window_notes = RING_NOTES
    runners = ("Core ML", "reference executor") if IS_MACOS else ("reference executor", "Core ML")
    compute_precisions = ("float16", "float32")
    verification_precisions = ("float32", None if IS_MACOS else "float16")
    native_schemes = frozenset({"integer", "palette"})

    def runs_in_float16(self, precision: str | None, exceeds_float16: bool = False) -> bool:
        return precision != "float32"

    def is_slow(self, precision: str | None) -> bool:
        return precision is not None  # the reference executor

    def entry_point(self, component: Component) -> EntryPoint:
        return EntryPoint(f"{component.graph}.mlpackage", component.name)

    def lower(self, graph: Graph, folder: Path) -> None:
        from voxport.export.targets.coreml.lowering import lower_graph

        lower_graph(graph, folder / f"{graph.name}.mlpackage", self._precision(graph))

    def check(self, graph: Graph, folder: Path) -> str:
        from voxport.export.targets.coreml.read_back import check_package

        check_package(folder / f"{graph.name}.mlpackage", graph, self._precision(graph))
        return "functions, states, integers and scales equal the module"

    def _precision(self, graph: Graph) -> Precision:
        return "float32" if graph.exceeds_float16 else self.compute_precision

    def artifact_dtype(self, dtype: Dtype) -> Dtype:
        """Core ML has no 64-bit integers."""
        return "int32" if dtype == "int64" else dtype

    def state_name(self, graph: str, state: str) -> str:
        return graph_state_name(graph, state)

    def state_dtype(self, dtype: Dtype) -> Dtype:
        return "float16"
