"""What lowerings and read-backs of all targets share: tracing with torch, errors, comparison of linears."""

import hashlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import nn

from voxport.bundle.errors import ExportError, first_line
from voxport.bundle.spec import graph_state_name
from voxport.export.targets.base import Graph
from voxport.model.graph import Component
from voxport.model.layers.attention import AnyAttentionKernel, attention_kernel
from voxport.model.layers.basic import NormKernel, norm_kernel
from voxport.quantize.modules import LinearKernel, QuantizedLinear, linear_kernel

TRACE_ROWS = 5  # size of a dynamic dimension while tracing; torch.export would take 0 and 1 as constants


def example_inputs(component: Component, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Inputs of a component by name, with these sizes of its dimensions."""
    return {name: torch.from_numpy(array) for name, array in component.example(0, **sizes).items()}


def trace_inputs(component: Component) -> list[torch.Tensor]:
    """Inputs to trace a component with, in order."""
    dims = component.signature.dims
    return list(example_inputs(component, {dim: min(TRACE_ROWS, dims[dim][1]) for dim in dims}).values())


def zero_states(component: Component) -> list[torch.Tensor]:
    return [torch.zeros(state.shape) for state in component.signature.states]


def dynamic_shapes(component: Component) -> list[dict[int, torch.export.Dim]]:
    """The dynamic dimensions of each input by axis."""
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
    """A pure module with its states as buffers, for targets with mutable states: `forward(*inputs) ->
    outputs`.

    An attention kernel may update a cache in place and return it. Such a cache is not copied.
    """

    def __init__(self, component: Component, module: nn.Module):
        super().__init__()
        self.module = module
        self.n_outputs = len(component.signature.outputs)
        self.are_caches = [state.cache is not None for state in component.signature.states]
        self.names = [graph_state_name(component.graph, state.name) for state in component.signature.states]
        for name, state in zip(self.names, component.signature.states, strict=True):
            self.register_buffer(name, torch.zeros(state.shape))

    def states(self) -> list[torch.Tensor]:
        return [self.get_buffer(name) for name in self.names]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = self.states()
        result = self.module(*inputs, *before)
        result = result if isinstance(result, tuple) else (result,)
        for buffer, after in zip(before, result[self.n_outputs :], strict=True):
            if after is not buffer:
                # the shape is already equal, but Core ML's converter loses it in slices
                buffer.copy_(after.reshape(buffer.shape))
        return result[: self.n_outputs]


def trace(component: Component, module: nn.Module) -> torch.export.ExportedProgram:
    """Exports a component with its states as buffers.

    Not strict, because strict tracing renames inputs that a module takes as *args.
    """
    return torch.export.export(
        Stateful(component, module),
        tuple(trace_inputs(component)),
        dynamic_shapes=(tuple(axes or None for axes in dynamic_shapes(component)),),
        strict=False,
    )


@contextmanager
def target_kernels(
    module: nn.Module, linear: LinearKernel, attention: AnyAttentionKernel, norm: NormKernel | None = None
) -> Iterator[None]:
    """Sets the kernels of a target below `module`, and restores the previous kernels on exit."""
    norms = nullcontext() if norm is None else norm_kernel(module, norm)
    with linear_kernel(module, linear), attention_kernel(module, attention), norms:
        yield


@contextmanager
def export_errors(what: str) -> Iterator[None]:
    """Raises errors of a target's tools as an ExportError of one line, which begins with `what`."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"{what}: {type(error).__name__}: {first_line(error)}") from error


@contextmanager
def without_warnings(*loggers: str) -> Iterator[None]:
    """Hides warnings, and messages below errors of these loggers, while the tools of a target run."""
    levels = {logger: logger.level for logger in map(logging.getLogger, loggers)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in levels:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in levels.items():
                logger.setLevel(level)


@contextmanager
def without_converter_output() -> Iterator[None]:
    """Hides the progress bars and warnings of Apple's converters. They raise their errors."""
    loggers = ("coreai_torch", "coremltools", "torch", "torchao")
    with without_warnings(*loggers), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def compare(where: str, what: str, found: Any, expected: Any) -> None:
    """Raises ExportError if a value that is read back differs."""
    if found != expected:
        raise ExportError(f"{where}: {what}: found {found}, expected {expected}")


class StoredLinear(NamedTuple):
    """A quantised linear as it is stored: hashes of its integers and scales. A block shares a scale."""

    bits: int
    block: int
    integers: str
    scale: str


def compare_linears(
    file: str,
    graph: Graph,
    of_linear: Callable[[QuantizedLinear], StoredLinear],
    found: dict[StoredLinear, str],
) -> str:
    """Compares the linears that were found in `file`, with their places, with the linears of `graph`.

    Returns a description, empty if nothing is quantised. Raises ExportError. Changes of a weight that are
    too small to show in an output are found here.
    """
    linears = {name: part for name, part in graph.module.named_modules() if isinstance(part, QuantizedLinear)}
    expected = {of_linear(linear): name for name, linear in linears.items()}
    for linear in expected.keys() - found.keys():
        raise ExportError(f"{file}: no linear has the integers and scales of {expected[linear]}")
    for linear in found.keys() - expected.keys():
        raise ExportError(f"{file}: {found[linear]} has the weights of no linear of the module")
    return f"integers and scales of {len(found)} linears are equal" if found else ""


def hash_of(values: npt.NDArray[Any] | bytes) -> str:
    """SHA-256 of bytes, or of the bytes of an array in C order."""
    return hashlib.sha256(values if isinstance(values, bytes) else values.tobytes()).hexdigest()
