"""The target ONNX, for ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.manifest import Bundle, Precision
from voxport.bundle.spec import Dtype
from voxport.export.targets.base import Costs, EntryPoint, Graph, Target
from voxport.model.graph import Component
from voxport.quantize.schemes import Scheme

if TYPE_CHECKING:
    from voxport.runtime.engines.base import Engine, EngineOptions


class OnnxTarget(Target):
    """One `.onnx` file and one file of weights per graph. Equal weights are stored once."""

    name = "onnx"
    packages = ("onnx", "onnxscript", "onnxruntime")
    layout = "BHSD, staged"
    kernel = ("voxport.quantize.modules", "int8_per_block")
    costs = Costs(lowering=1.2, running=1.5, product=0.05, verification=8, sample=20)
    state_notes = """\
States are inputs `past.NAME` and outputs `present.NAME`. Bind the input and the output of a cache to one
buffer. All other states are small. Large weights are in `GRAPH.onnx.data` beside each graph. Quantised
products and attention are operators of ONNX Runtime (domain com.microsoft: MatMulNBits,
MatMulIntegerToFloat, GroupQueryAttention).
"""
    sliding_window_notes = """\
A cache with a window W is a sliding-window cache. Its first W - 1 rows are the history: row p of the stream
is stored at row p mod (W - 1). The row number p is `position` times the rows of a position. The graph writes
the rows of a call behind the history, from row h on. h is W - 1. If the cache has W rows in all and fewer
than W - 1 rows came before, h is their number. After each call, copy every row that was written at row W - 1
or later into the history: row h + i to row (p + i) mod (W - 1), in ascending order. No other row is copied or
cleared.
"""
    runners = ("ONNX Runtime",)
    has_integer_kernels = True
    has_float_activations = True
    compute_precisions = ("float32", "float16")
    max_batch = 8

    def __init__(self, compute_precision: Precision | None = None):
        super().__init__(compute_precision)
        if self.compute_precision == "float16":
            self.kernel, self.has_integer_kernels = ("voxport.quantize.modules", "float_activations"), False

    def runs_in_float16(self, precision: str | None, exceeds_float16: bool = False) -> bool:
        return self.compute_precision == "float16"

    def holds(self, scheme: Scheme) -> bool:
        rounds = self.compute_precision == "float16" and scheme.integer_activations(False)
        return super().holds(scheme) and not rounds  # its products have float activations

    def state_dtype(self, dtype: Dtype, exceeds_float16: bool = False) -> Dtype:
        return self.compute_precision if dtype == "float32" else dtype

    def entry_point(self, component: Component) -> EntryPoint:
        return EntryPoint(f"{component.graph}.onnx", component.graph)

    def lower(self, graph: Graph, folder: Path) -> None:
        from voxport.export.targets.onnx.lowering import lower_graph

        lower_graph(graph, folder, self.max_batch, self.compute_precision)

    def check(self, graph: Graph, folder: Path) -> str:
        from voxport.export.targets.onnx.read_back import check_graph

        return check_graph(folder / self.entry_point(graph.first).file, graph, self.compute_precision)

    def open_artifacts(
        self, bundle: Bundle, options: EngineOptions, float_activations: bool = False
    ) -> Engine:
        if not float_activations:
            return super().open_artifacts(bundle, options)
        from voxport.export.targets.onnx.read_back import FloatActivationsEngine

        return FloatActivationsEngine(bundle, options)
