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
States are inputs `past.NAME` and outputs `present.NAME`. Pass each output as the next input. An engine that
can bind both to one buffer copies no cache; the result is the same. A cache without a window has the row of
position p at row p, and its number of rows, axis 2, is free. Pass exactly `position` rows, none at first:
then the output has the rows of the call as well, and an engine that copies caches copies no empty rows. Or
pass any number that is enough for the call: then the output has as many. Large weights of a graph are in
`GRAPH.onnx.data` beside it, if `files` has that name.
"""
    sliding_window_notes = """\
A cache with a window W is a sliding-window cache. Its first W - 1 rows are the history. The graph writes the
new rows of a call behind it, and the runner copies them into it after the call:

    n = positions of the call * rows_per_position   # axis 1 of the first input has the positions
    p = position * rows_per_position      # rows of the stream before this call
    h = min(p, W - 1) if max_call_rows == 1 else W - 1
    for i in 0 ... n - 1, ascending:
        if h + i >= W - 1:
            copy row h + i to row (p + i) mod (W - 1)

`rows_per_position` and `max_call_rows` are in `cache` of the state in `manifest.json`. No other row is copied
or cleared.
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

    def engine_notes(self, folder: Path) -> str:
        from voxport.export.targets.onnx.read_back import describe_operators

        return describe_operators(sorted(folder.glob("*.onnx")))

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
