"""The target Core AI, for iOS 27 and macOS 27."""

import sys
from pathlib import Path

from voxport.bundle.manifest import Precision
from voxport.bundle.spec import Dtype, graph_state_name
from voxport.export.targets.base import RING_NOTES, Costs, EntryPoint, Graph, Target
from voxport.model.graph import Component

IS_MACOS = sys.platform == "darwin"


class CoreAITarget(Target):
    """One `.aimodel` per graph with a function per component. Functions share weights and states."""

    name = "coreai"
    packages = ("coreai", "coreai_torch")
    layout = "BHSD"
    kernel = ("voxport.export.targets.apple", "dequantized_linear")
    costs = Costs(lowering=2.0, running=1.8, product=0.25, verification=100, sample=60)
    state_notes = "For iOS 27, macOS 27 or newer.\n"
    sliding_window_notes = RING_NOTES
    runners = ("Core AI",)
    compute_precisions = ("float16", "float32")
    native_schemes = frozenset({"integer", "palette"})

    def runs_in_float16(self, precision: str | None) -> bool:
        return precision != "float32"

    def is_slow(self, precision: str | None) -> bool:
        return True

    def entry_point(self, component: Component) -> EntryPoint:
        return EntryPoint(f"{component.graph}.aimodel", component.name)

    def lower(self, graph: Graph, folder: Path) -> None:
        from voxport.export.targets.coreai.lowering import lower_graph

        lower_graph(graph, folder / f"{graph.name}.aimodel", self._precision(graph))

    def _precision(self, graph: Graph) -> Precision:
        return "float32" if graph.exceeds_float16 else self.compute_precision

    def artifact_dtype(self, dtype: Dtype) -> Dtype:
        """Core AI has no 64-bit integers."""
        return "int32" if dtype == "int64" else dtype

    def state_name(self, graph: str, state: str) -> str:
        return graph_state_name(graph, state)

    def state_dtype(self, dtype: Dtype) -> Dtype:
        return "float16"
