"""What a target must provide, and what every target shares: graphs, their example inputs, their states."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from bundle.cache import LayoutName, coreml_state_name
from bundle.manifest import Precision
from bundle.spec import Signature
from model.component import Component
from quantize.linear import LinearKernel

TRACE_ROWS = 5  # size of a dynamic dimension while tracing: neither 0 nor 1, which torch.export would take as constants


@dataclass(frozen=True)
class Graph:
    """A module with its weights, and the components that it computes: the first has the widest bounds."""

    name: str
    module: nn.Module
    components: tuple[Component, ...]

    @property
    def widest(self) -> Component:
        return self.components[0]

    @property
    def batched(self) -> bool:
        return any(component.batched for component in self.components)

    def trace_inputs(self) -> dict[str, torch.Tensor]:
        return example_inputs(
            self.widest, {dim: min(TRACE_ROWS, high) for dim, (_, high) in self.widest.signature.dims.items()}
        )


@dataclass(frozen=True)
class EntryPoint:
    """Where a component is called: `name` inside `file`. `state_rows_per_call` bounds the cache rows that one call of a method
    that reads or writes states moves (0: no such methods)."""

    file: str
    name: str
    state_rows_per_call: int = 0


class Lowering(Protocol):
    """One target. `layout` and `linear_kernel` say what its artifacts compute, for the eager reference to do the same.

    `max_batch`: how many one call of a batched component may serve. `is_slow`: large artifacts run here at seconds a call.
    `integer_kernels`: quantised products round their activations whatever the scheme asks.
    `runners` are what may run the artifacts, the one of this machine first; `precisions` those in which it does to verify them,
    the first at full length. `compute_precision` is what floats are held in.
    """

    target: str
    layout: LayoutName
    linear_kernel: LinearKernel
    max_batch: int = 1
    is_slow: bool = False
    runners: tuple[str, ...]
    precisions: tuple[str | None, ...] = (None,)
    compute_precision: Precision = "float32"
    integer_kernels: bool
    packages: tuple[str, ...]

    @property
    def halves(self) -> bool:
        """Whether floats are rounded to half precision."""
        return self.compute_precision == "float16"

    def signature(self, component: Component) -> Signature:
        """The component's signature in the artifact, whose dimensions may have narrower bounds."""
        return component.signature

    def entry_point(self, component: Component) -> EntryPoint:
        """Where the artifact of the component's graph has it."""
        ...

    def lower(self, graph: Graph, folder: Path) -> None:
        """Writes a graph into files of its own in `folder`.

        Nothing of another graph is needed, so that weights can be freed before the next is loaded. Raises ExportError.
        """
        ...

    def computes_in_half(self, precision: str | None) -> bool:
        """Whether values are rounded to half precision where the artifact runs in `precision`."""
        return False

    def check(self, graph: Graph, folder: Path) -> str:
        """What was found right about a saved graph without running it, if this target can tell. Raises ExportError."""
        return ""


def example_inputs(component: Component, sizes: dict[str, int], seed: int = 0) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in component.example(seed, **sizes).items()}


def zero_states(component: Component) -> list[torch.Tensor]:
    return [torch.zeros(state.shape) for state in component.signature.states]


def dynamic_shapes(component: Component) -> list[dict[int, torch.export.Dim]]:
    """One entry per input: which of its axes are which dimension."""
    dims = {
        name: torch.export.Dim(name, min=low, max=high)
        for name, (low, high) in component.signature.dims.items()
        if high > 1
    }
    return [
        {axis: dims[size] for axis, size in enumerate(spec.shape) if size in dims}
        for spec in component.signature.inputs
    ]


class Stateful(nn.Module):
    """A pure module with its states as buffers, for targets that mutate them: `forward(*inputs) -> outputs`.

    A target's attention may write a cache in place and hand it back; then there is nothing to copy.
    """

    def __init__(self, component: Component, module: nn.Module):
        super().__init__()
        self.module = module
        self.n_outputs = len(component.signature.outputs)
        self.names = [coreml_state_name(component.graph, state.name) for state in component.signature.states]
        for name, state in zip(self.names, component.signature.states, strict=True):
            self.register_buffer(name, torch.zeros(state.shape))

    def states(self) -> list[torch.Tensor]:
        return [getattr(self, name) for name in self.names]

    def forward(self, *inputs: torch.Tensor):
        before = self.states()
        result = self.module(*inputs, *before)
        result = result if isinstance(result, tuple) else (result,)
        for buffer, after in zip(before, result[self.n_outputs :], strict=True):
            if after is not buffer:
                buffer.copy_(
                    after.reshape(buffer.shape)
                )  # of that shape already; Core ML's converter loses track of it in slices
        return result[: self.n_outputs]


@contextmanager
def quiet_logs(*names: str) -> Iterator[None]:
    """Raises the level of noisy loggers while a target converts."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
