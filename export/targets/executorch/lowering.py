"""Lowering of one graph to an ExecuTorch program.

XNNPACK computes linears and convolutions, portable and llama operators the rest. A runtime saves and restores
states with the methods `GRAPH.read` and `GRAPH.write`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    to_edge,
)
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from torch.fx.passes.tools_common import legalize_graph

from voxport.bundle.spec import READ_METHOD, WRITE_METHOD
from voxport.export.targets.base import Graph
from voxport.export.targets.executorch.graph_order import late_nodes_moved
from voxport.export.targets.executorch.kernels import LlamaAttention, rms_norm
from voxport.export.targets.executorch.partitioner import (
    ConvolutionPartitioner,
    LinearPartitioner,
    keep_convolution_weights,
)
from voxport.export.targets.graph_code import lazily_compiled_graphs, without_stack_traces
from voxport.export.targets.tracing import (
    TRACE_ROWS,
    Stateful,
    export_errors,
    target_kernels,
    trace,
    without_warnings,
)
from voxport.model.component import Component
from voxport.quantize.modules import int8_per_token

LOGGERS = ("torch", "torchao", "executorch", "root")


def lower_graph(graph: Graph, folder: Path, state_rows: int) -> None:
    """Writes `GRAPH.pte`, which reads and writes at most `state_rows` rows of a cache in one call. Raises
    ExportError.
    """
    with (
        export_errors(f"{graph.name}: ExecuTorch export failed"),
        without_warnings(*LOGGERS),
        lazily_compiled_graphs(),
        without_stack_traces(),
        target_kernels(graph.module, int8_per_token, LlamaAttention(), rms_norm),
    ):
        programs = {graph.name: trace(graph.first, graph.module), **_state_methods(graph.first, state_rows)}
    with (
        export_errors(f"{graph.name}: ExecuTorch lowering failed"),
        without_warnings(*LOGGERS),
        lazily_compiled_graphs(),
        without_stack_traces(),
        _shared_weights(),
        # torch would choose a kernel of the host for the size of the example, and bound dimensions by it
        torch.backends.mkldnn.flags(enabled=False),
    ):
        edge = _edge_programs(programs, graph.name)
        program = edge.to_executorch(
            ExecutorchBackendConfig(
                memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True),
                emit_mutable_buffer_names=True,
            )
        )
    with (folder / f"{graph.name}.pte").open("wb") as file:
        program.write_to_file(file)
    _free_weights(edge)


def _edge_programs(programs: dict[str, torch.export.ExportedProgram], name: str) -> EdgeProgramManager:
    """Delegates the linears and convolutions of `name`. The state methods have none.

    `to_edge_transform_and_lower` makes the same programs, but decomposes each one twice.
    """
    partitioner = LinearPartitioner()
    keep_convolution_weights(programs[name])
    whole, _ = partitioner.ops_to_not_decompose(programs[name])
    config = EdgeCompileConfig(preserve_ops=whole, _check_ir_validity=False)
    edge = to_edge(programs, compile_config=config)
    with late_nodes_moved():
        edge = edge.to_backend({name: partitioner}).to_backend({name: ConvolutionPartitioner()})
    legalize_graph(edge.exported_program(name).graph_module)
    return edge


def _free_weights(edge: EdgeProgramManager) -> None:
    """Frees the weights of delegates, packed and unpacked. Caches of torch keep lowered modules alive."""
    for method in edge.methods:
        for part in edge.exported_program(method).graph_module.modules():
            if isinstance(part, LoweredBackendModule):
                part.named_data_store_output.buffers.clear()
                part.original_module.state_dict.clear()
                part.original_module.constants.clear()


@contextmanager
def _shared_weights() -> Iterator[None]:
    """Lets deep copies of programs share their weights, which ExecuTorch never changes.

    It copies each program before it passes parts to a backend. The weights would take 4 GB more for the
    published backbone.
    """
    storage: Any = torch.UntypedStorage  # Any: a method of it is replaced
    copy = storage.__deepcopy__
    storage.__deepcopy__ = lambda weights, memo: weights
    try:
        yield
    finally:
        storage.__deepcopy__ = copy


class ReadStates(Stateful):
    """`GRAPH.read`: returns all states.

    For caches, it returns only the rows whose numbers are given in its input, int64 [N].
    """

    def forward(self, *rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            buffer.index_select(1, rows[0]) if is_cache else buffer.clone()
            for buffer, is_cache in zip(self.states(), self.are_caches, strict=True)
        )


class WriteStates(Stateful):
    """`GRAPH.write`: replaces all states; of caches, the rows whose numbers are the first input, int64 [N].

    States are zero when a program is loaded, whatever values it was exported with.
    """

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, values = (given[:1], given[1:]) if any(self.are_caches) else ((), given)
        for buffer, is_cache, value in zip(self.states(), self.are_caches, values, strict=True):
            if is_cache:
                torch.ops.llama.update_cache_with_indices(value, buffer, 0, rows[0][None])
            else:
                buffer.copy_(value)
        return ()


def _state_methods(component: Component, most: int) -> dict[str, torch.export.ExportedProgram]:
    """Both methods by name; none for a component without states.

    They move at most `most` rows of a cache per call; 0 means that there is no cache. ExecuTorch allocates
    memory for the largest inputs and outputs of a method when it is loaded, so methods for whole caches would
    take the memory of the caches again.
    """
    states = component.signature.states
    if not states:
        return {}
    count = torch.export.Dim("rows", min=1, max=most) if most else None
    rows = (torch.arange(TRACE_ROWS),) if most else ()
    values = tuple(torch.zeros(state.shape)[:, : TRACE_ROWS if state.cache else None] for state in states)
    dynamic = tuple({1: count} if state.cache else None for state in states)
    return {
        f"{component.graph}{READ_METHOD}": torch.export.export(
            ReadStates(component, nn.Module()),
            rows,
            dynamic_shapes=(({0: count},),) if most else None,
            strict=False,
        ),
        f"{component.graph}{WRITE_METHOD}": torch.export.export(
            WriteStates(component, nn.Module()),
            (*rows, *values),
            dynamic_shapes=(({0: count}, *dynamic),) if most else None,
            strict=False,
        ),
    }
