"""Lowering of one graph to an ExecuTorch program.

XNNPACK computes linears and convolutions, portable and llama operators the rest. A runtime saves and restores
states with the methods `GRAPH.read` and `GRAPH.write`.
"""

from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.config.gemm_configs import (
    AddmmConfig,
    ConvolutionConfig,
    LinearConfig,
    MMConfig,
)
from executorch.backends.xnnpack.partition.config.generic_node_configs import SigmoidConfig
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    to_edge,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from torch.fx.passes.tools_common import legalize_graph

from voxport.bundle.spec import READ_METHOD, WRITE_METHOD
from voxport.export.targets.base import Graph
from voxport.export.targets.executorch.kernels import LlamaAttention, rms_norm
from voxport.export.targets.executorch.patches import (
    FastPartitioner,
    late_nodes_moved,
    shared_weights,
)
from voxport.export.targets.shared import (
    TRACE_ROWS,
    Stateful,
    export_errors,
    target_kernels,
    trace,
    without_warnings,
)
from voxport.model.graph import Component
from voxport.quantize.modules import int8_per_token

LOGGERS = ("torch", "torchao", "executorch", "root")
# With everything that XNNPACK takes, slices and reshapes cut the codec of the golden checkpoint into 157
# delegates, and lowering takes twice as long.
LINEARS = [LinearConfig, AddmmConfig, MMConfig, SigmoidConfig]


def lower_graph(graph: Graph, folder: Path, state_rows: int) -> None:
    """Writes `GRAPH.pte`, which reads and writes at most `state_rows` rows of a cache in one call. Raises
    ExportError.
    """
    with (
        export_errors(f"{graph.name}: ExecuTorch export failed"),
        without_warnings(*LOGGERS),
        target_kernels(graph.module, int8_per_token, LlamaAttention(), rms_norm),
    ):
        programs = {graph.name: trace(graph.first, graph.module), **_state_methods(graph.first, state_rows)}
    with (
        export_errors(f"{graph.name}: ExecuTorch lowering failed"),
        without_warnings(*LOGGERS),
        shared_weights(),
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
    _keep_convolution_weights(programs[name])
    whole, _ = partitioner.ops_to_not_decompose(programs[name])
    config = EdgeCompileConfig(preserve_ops=whole, _check_ir_validity=False)
    edge = to_edge(programs, compile_config=config)
    with late_nodes_moved():
        edge = edge.to_backend({name: partitioner}).to_backend({name: ConvolutionPartitioner()})
    legalize_graph(edge.exported_program(name).graph_module)
    return edge


class LinearPartitioner(FastPartitioner):
    """Partitioner for linears.

    The compile option makes XNNPACK run the one pass for linears, of 17, on each delegate.
    """

    def __init__(self) -> None:
        super().__init__(configs=LINEARS)
        options = [CompileSpec("dqlinear_partitioner", b"")]
        self.delegation_spec: DelegationSpec = DelegationSpec(XnnpackBackend.__name__, options)


class ConvolutionPartitioner(FastPartitioner):
    """Partitioner for convolutions. ExecuTorch's own kernel takes a hundred times as long.

    It comes after `LinearPartitioner`, because convolutions need all passes of XNNPACK. Activations are not
    taken: with them the codec of Qwen3-TTS is a tenth faster, but has twice as many parts to lower.
    """

    def __init__(self) -> None:
        super().__init__(configs=[ConvolutionConfig])


def _keep_convolution_weights(program: torch.export.ExportedProgram) -> None:
    """Moves weights of convolutions that are buffers outside the state dict into it.

    XNNPACK gives weights of one axis a second one, and writes them to the state dict.
    """
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.conv1d.default):
        spec = specs.get(node.args[1].name)  # none for a weight that the program computes
        if spec and spec.persistent is False:
            spec.persistent = True
            program.state_dict[spec.target] = program.constants.pop(spec.target)


def _free_weights(edge: EdgeProgramManager) -> None:
    """Frees the weights of delegates, packed and unpacked. Caches of torch keep lowered modules alive."""
    for method in edge.methods:
        for part in edge.exported_program(method).graph_module.modules():
            if isinstance(part, LoweredBackendModule):
                part.named_data_store_output.buffers.clear()
                part.original_module.state_dict.clear()
                part.original_module.constants.clear()


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
