"""The target ExecuTorch, for its runtime with XNNPACK."""

from dataclasses import replace
from pathlib import Path

from voxport.bundle.spec import Signature
from voxport.export.targets.base import RING_NOTES, Costs, EntryPoint, Graph, Target
from voxport.model.graph import Component
from voxport.quantize.schemes import IntegerScheme, Scheme

GROUPED_BITS = 4  # most bits of weights in groups
MAX_STATE_ROWS = 64  # most cache rows that one call of `GRAPH.read` or `GRAPH.write` moves


class ExecuTorchTarget(Target):
    """One `.pte` per graph. A graph is one dynamic method, because each loaded method packs its weights again
    in memory.
    """

    name = "executorch"
    packages = ("executorch",)
    layout = "BSHD"
    kernel = ("voxport.quantize.modules", "int8_per_token")
    costs = Costs(lowering=1.5, running=1.7, product=0.2, verification=17, sample=9)
    state_notes = """\
States are mutable buffers of the program of a graph. They are zero when the program is loaded. The methods of
a program share them only if it is loaded with shared memory (`share_memory_arenas` of `Module` in C++).
`GRAPH.read` returns all states of a graph in the order of the table. Its one input is int64 row numbers, at
most `state_rows_per_call` of `manifest.json`. Of each cache it returns those rows. It has no input if the
graph has no cache. `GRAPH.write` takes the same row numbers, then all states, and replaces them. Divide
prompts, and codes for `codec_step`, with more rows than a table allows into several calls. Add the number of
rows before a call to `position`. Outputs without rows come from the last call. The recording of a voice
cannot be divided. Link the portable operators, XNNPACK, and the custom operators of `extension/llm`
(update_cache, update_cache_with_indices, custom_sdpa), of the version in `manifest.json`.
"""
    sliding_window_notes = RING_NOTES
    runners = ("ExecuTorch",)
    has_integer_kernels = True

    def holds(self, scheme: Scheme) -> bool:
        """XNNPACK has groups of 4-bit weights only, and rounds activations."""
        if not isinstance(scheme, IntegerScheme):
            return super().holds(scheme)
        is_wide = scheme.group is not None and scheme.bits > GROUPED_BITS
        return scheme.integer_activations(True) and not is_wide

    def signature(self, component: Component) -> Signature:
        """Calls take a limited number of rows. ExecuTorch holds memory for the largest call."""
        signature, most = component.signature, component.rows_per_call
        if most is None:
            return signature
        bounds = {name: (low, min(high, most)) for name, (low, high) in signature.dims.items()}
        return replace(signature, dims=bounds)

    def entry_point(self, component: Component) -> EntryPoint:
        cache = component.signature.cache
        state_rows = min(MAX_STATE_ROWS, cache.shape[1]) if cache else 0
        return EntryPoint(f"{component.graph}.pte", component.graph, state_rows)

    def lower(self, graph: Graph, folder: Path) -> None:
        from voxport.export.targets.executorch.lowering import lower_graph

        components = tuple(replace(part, signature=self.signature(part)) for part in graph.components)
        state_rows = self.entry_point(graph.first).state_rows_per_call
        lower_graph(replace(graph, components=components), folder, state_rows)

    def check(self, graph: Graph, folder: Path) -> str:
        from voxport.export.targets.executorch.read_back import check_program

        return check_program(folder / self.entry_point(graph.first).file, graph)
