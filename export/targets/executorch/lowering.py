"""Lowering of one graph to an ExecuTorch program: XNNPACK for products, portable and llama operators for the
rest.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.config.gemm_configs import AddmmConfig, LinearConfig, MMConfig
from executorch.backends.xnnpack.partition.config.generic_node_configs import SigmoidConfig
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes import MemoryPlanningPass

from export.targets.base import Graph
from export.targets.executorch.attention import LlamaAttention, rms_norm
from export.targets.executorch.state_methods import state_methods
from export.targets.tracing import dynamic_shapes, export_errors, quiet, target_kernels, trace
from quantize.modules import int8_per_token

# Products of weights, of every precision. With everything that XNNPACK takes, slices and reshapes cut the
# codec of the golden checkpoint into 157 delegates, and lowering takes twice as long.
PRODUCTS = [LinearConfig, AddmmConfig, MMConfig, SigmoidConfig]
LOGGERS = ("torch", "torchao", "executorch", "root")


def lower_graph(graph: Graph, folder: Path) -> None:
    """Writes `GRAPH.pte`. Raises ExportError."""
    with export_errors(graph, "ExecuTorch export"), quiet(*LOGGERS):
        programs = _trace(graph)
    with export_errors(graph, "ExecuTorch lowering"), quiet(*LOGGERS), _shared_weights():
        edge = to_edge_transform_and_lower(
            programs,
            partitioner={graph.name: [_product_partitioner()]},  # the state methods have no products
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        planning = MemoryPlanningPass(share_mutable_buffers=True)
        program = edge.to_executorch(
            ExecutorchBackendConfig(memory_planning_pass=planning, emit_mutable_buffer_names=True)
        )
    with (folder / f"{graph.name}.pte").open("wb") as file:
        program.write_to_file(file)
    _free_weights(edge)


def _trace(graph: Graph) -> dict[str, torch.export.ExportedProgram]:
    component = graph.first
    with target_kernels(graph.module, int8_per_token, LlamaAttention(), rms_norm):
        program = trace(component, graph.module, dynamic_shapes(component))
        return {graph.name: program, **state_methods(component)}


def _product_partitioner() -> XnnpackPartitioner:
    """Delegates products only. The compile option makes XNNPACK run the one pass for products, of 17, on each
    delegate.
    """
    partitioner = XnnpackPartitioner(configs=PRODUCTS)
    options = [CompileSpec("dqlinear_partitioner", b"")]
    partitioner.delegation_spec = DelegationSpec(partitioner.delegation_spec.backend_id, options)
    return partitioner


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
