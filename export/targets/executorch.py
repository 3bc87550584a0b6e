"""Lowering to ExecuTorch: XNNPACK for products, the llama operators for caches, one program per graph."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

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
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  registers torch.ops.llama
from torch import nn

from bundle.cache import read_method, write_method
from bundle.errors import ExportError, first_line
from bundle.spec import Signature
from export.targets.base import TRACE_ROWS, EntryPoint, Graph, Lowering, Stateful, dynamic_shapes, quiet_logs
from model.component import Component
from model.layers.attention import AttentionKernel, attention_kernel, ring_positions, window_mask
from model.layers.norm import norm_kernel
from quantize.linear import int8_per_token, linear_kernel

# Products with weights only, of every precision: with everything that XNNPACK takes, slices and reshapes cut the codec of the
# golden checkpoint into 157 delegates, and lowering takes twice as long.
PRODUCTS = [LinearConfig, AddmmConfig, MMConfig, SigmoidConfig]
MASKED = -1e4  # finite: a row may be masked whole
MOVED_ROWS = 64  # of each cache, that a call of `GRAPH.read` or `GRAPH.write` moves at most


def _rms_norm(x: torch.Tensor, widths: tuple[int, ...], weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Squares as products: ExecuTorch's power takes ten times as long."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


class LlamaAttention(AttentionKernel):
    """Caches [1, L, H_kv, D], written in place by `update_cache` and read up to the last position by `custom_sdpa`."""

    layout = "BSHD"

    def cached(self, q, k, v, rotation, k_cache, v_cache, position):
        q, k = rotation.both(q, k)
        start = position[0].item()
        torch._check_is_size(start)
        torch._check(start < k_cache.shape[1])
        torch._check(start + q.shape[1] <= k_cache.shape[1])
        torch.ops.llama.update_cache(k, k_cache, start)
        torch.ops.llama.update_cache(v, v_cache, start)
        return torch.ops.llama.custom_sdpa(q, k_cache, v_cache, start, None, 0.0, True), k_cache, v_cache

    def cache_update(self, position, rows, cache, window):
        """In a ring: places of the rows and a mask; or, where it holds `window` rows and a call writes one, so that every row is seen
        and no mask is needed, its place and how many rows lie before it."""
        length = cache.shape[1]
        if length > window:
            mask = torch.where(
                window_mask(ring_positions(length, position + rows), position, rows, window), 0.0, MASKED
            )
            return ((position + torch.arange(rows)) % length)[None], mask
        place, before = (position % length)[0].item(), position.clamp(max=length - rows)[0].item()
        for value in (place, before):
            torch._check_is_size(value)
            torch._check(value + rows <= length)
        return place, before

    def sliding_window(self, q, k, v, rotation, k_cache, v_cache, update):
        q, k = rotation.both(q, k)
        place, what = update
        if isinstance(place, torch.Tensor):
            torch.ops.llama.update_cache_with_indices(k, k_cache, 0, place)
            torch.ops.llama.update_cache_with_indices(v, v_cache, 0, place)
            return (
                torch.ops.llama.custom_sdpa(
                    q, k_cache, v_cache, k_cache.shape[1] - q.shape[1], what, 0.0, False
                ),
                k_cache,
                v_cache,
            )
        torch.ops.llama.update_cache(k, k_cache, place)
        torch.ops.llama.update_cache(v, v_cache, place)
        return torch.ops.llama.custom_sdpa(q, k_cache, v_cache, what, None, 0.0, True), k_cache, v_cache

    def uncached(self, q, k, v):
        return torch.ops.llama.custom_sdpa(
            q, k, v, k.shape[1] - q.shape[1], None, 0.0, False
        )  # it reads keys up to the start and the queries' number


class Mover(Stateful):
    """States of a graph without its weights."""

    def __init__(self, component: Component):
        super().__init__(component, nn.Module())
        self.are_caches = [state.cache for state in component.signature.states]


class ReadStates(Mover):
    """`GRAPH.read`: all states, so that a runtime can take a snapshot; of caches the rows whose numbers are its one input."""

    def forward(self, *rows: torch.Tensor):
        pairs = zip(self.states(), self.are_caches, strict=True)
        return tuple(
            buffer.index_select(1, rows[0]) if is_cache else buffer.clone() for buffer, is_cache in pairs
        )


class WriteStates(Mover):
    """`GRAPH.write`: replaces all states, of caches the rows whose numbers come first. A program starts with zeros whatever it was exported with."""

    def forward(self, *given: torch.Tensor):
        rows, values = (given[:1], given[1:]) if any(self.are_caches) else ((), given)
        for buffer, is_cache, value in zip(self.states(), self.are_caches, values, strict=True):
            if is_cache:
                torch.ops.llama.update_cache_with_indices(value, buffer, 0, rows[0][None])
            else:
                buffer.copy_(value)
        return ()


class ExecuTorchLowering(Lowering):
    """One `.pte` per graph; a graph is one dynamic method, because each loaded method packs its weights once more in memory."""

    target = "executorch"
    layout = LlamaAttention.layout
    linear_kernel = staticmethod(int8_per_token)
    runners = ("ExecuTorch",)
    integer_kernels = True
    packages = ("torch", "torchao", "executorch")

    def signature(self, component: Component) -> Signature:
        """A component that carries windows rather than a cache takes one step per call: it streams anyway, and with a dynamic
        size the codec takes twice as long to lower."""
        signature = component.signature
        if not signature.states or signature.cache:
            return signature
        return replace(signature, dims=dict.fromkeys(signature.dims, (1, 1)))

    def entry_point(self, component: Component) -> EntryPoint:
        return EntryPoint(f"{component.graph}.pte", component.graph, _rows_moved(component))

    def lower(self, graph: Graph, folder: Path) -> None:
        graph = replace(
            graph,
            components=tuple(replace(c, signature=self.signature(c)) for c in graph.components),
        )
        programs = self._trace(graph)
        products = {graph.name: [_products_only()]}  # nothing in the methods that only move states
        try:
            with _quiet(), _weights_kept():
                edge = to_edge_transform_and_lower(
                    programs,
                    partitioner=products,
                    compile_config=EdgeCompileConfig(_check_ir_validity=False),
                )
                planning = MemoryPlanningPass(share_mutable_buffers=True)
                program = edge.to_executorch(
                    ExecutorchBackendConfig(memory_planning_pass=planning, emit_mutable_buffer_names=True)
                )
        except Exception as error:
            raise ExportError(
                f"{graph.name}: ExecuTorch lowering failed: {type(error).__name__}: {first_line(error)}"
            ) from error
        name = f"{graph.name}.pte"
        with (folder / name).open("wb") as file:
            program.write_to_file(file)
        _let_go(edge)

    def _trace(self, graph: Graph) -> dict[str, torch.export.ExportedProgram]:
        component = graph.widest
        try:
            with (
                _quiet(),
                linear_kernel(graph.module, int8_per_token),
                attention_kernel(graph.module, LlamaAttention()),
                norm_kernel(graph.module, _rms_norm),
            ):
                inputs = tuple(graph.trace_inputs().values())
                dynamic = (tuple(shapes or None for shapes in dynamic_shapes(component)),)
                methods = {
                    graph.name: torch.export.export(
                        Stateful(component, graph.module), inputs, dynamic_shapes=dynamic, strict=False
                    )
                }
                methods |= _movers(component)
        except Exception as error:
            raise ExportError(
                f"{graph.name}: ExecuTorch export failed: {type(error).__name__}: {first_line(error)}"
            ) from error
        return methods


def _products_only() -> XnnpackPartitioner:
    """Takes products alone, and says so in XNNPACK's own word: of its 17 passes over each delegate, then, it runs the one for products."""
    partitioner = XnnpackPartitioner(configs=PRODUCTS)
    specs = [CompileSpec("dqlinear_partitioner", b"")]
    partitioner.delegation_spec = DelegationSpec(partitioner.delegation_spec.backend_id, specs)
    return partitioner


def _movers(component: Component) -> dict[str, torch.export.ExportedProgram]:
    """Methods that give a component's states away and take others in. Memory for what a method takes and gives is there from loading
    on, so that whole caches would be held twice."""
    if not component.signature.states:
        return {}
    most = _rows_moved(component)
    count = torch.export.Dim("rows", min=1, max=most) if most else None
    rows = (torch.arange(TRACE_ROWS),) if most else ()
    values = tuple(
        torch.zeros(state.shape)[:, : TRACE_ROWS if state.cache else None]
        for state in component.signature.states
    )
    dynamic = tuple({1: count} if state.cache else None for state in component.signature.states)
    return {
        read_method(component.graph): torch.export.export(
            ReadStates(component), rows, dynamic_shapes=(({0: count},),) if most else None, strict=False
        ),
        write_method(component.graph): torch.export.export(
            WriteStates(component),
            (*rows, *values),
            dynamic_shapes=(({0: count}, *dynamic),) if most else None,
            strict=False,
        ),
    }


def _rows_moved(component: Component) -> int:
    return next((min(MOVED_ROWS, state.shape[1]) for state in component.signature.states if state.cache), 0)


def _let_go(edge: EdgeProgramManager) -> None:
    """The weights of what was delegated, packed and as they were: caches of torch hold lowered modules for as long as the process runs."""
    for method in edge.methods:
        for part in edge.exported_program(method).graph_module.modules():
            if isinstance(part, LoweredBackendModule):
                part.named_data_store_output.buffers.clear()
                part.original_module.state_dict.clear()
                part.original_module.constants.clear()


@contextmanager
def _weights_kept():
    """ExecuTorch copies each program deeply before it hands parts of it to a backend, the weights too: 4 GB for the published
    backbone. Nobody writes into them, so copies may share them."""
    copy = torch.UntypedStorage.__deepcopy__
    torch.UntypedStorage.__deepcopy__ = lambda storage, memo: storage
    try:
        yield
    finally:
        torch.UntypedStorage.__deepcopy__ = copy


@contextmanager
def _quiet():
    with warnings.catch_warnings(), quiet_logs("torch", "torchao", "executorch", "root"):
        warnings.simplefilter("ignore")
        yield
