"""The eager engine: the same modules in torch, with a target's arithmetic; the reference of every check."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from zlib import crc32

import numpy as np
import torch
from torch import nn

from voxport.bundle.errors import ExportError
from voxport.bundle.spec import Dimension, LayoutName, Signature, StateSpec
from voxport.export.targets.base import Graph
from voxport.model.graph import Component
from voxport.model.layers.attention import ReferenceAttention, attention_kernel
from voxport.quantize.modules import LinearKernel, QuantizedLinear, float_activations, linear_kernel
from voxport.quantize.parallel import one_thread
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.engines.states import copy_states, empty_states, write_states

# Weights of a module. With fewer, an operation takes about as long as it takes to share it. Torch's threads
# wait for each other after every operation. Where another program has a core, that takes ten times as long.
LEAST_BYTES_FOR_THREADS = 64 << 20


class EagerEngine(Engine):
    """Runs components as torch modules. `kernel` computes quantised linears; caches have `layout`.

    Small modules have one thread.
    """

    def __init__(
        self,
        components: Sequence[Component],
        module: Callable[[str], nn.Module],
        layout: LayoutName,
        kernel: LinearKernel = float_activations,
    ):
        """`module(name)` returns the module of a component, with its weights."""
        super().__init__()
        self._components = {component.name: component for component in components}
        self._module = module
        self._attention, self._kernel, self.identity = ReferenceAttention(layout), kernel, "eager"
        self._is_small: dict[str, bool] = {}

    def stream(self) -> "EagerStream":
        return EagerStream({name: component.signature for name, component in self._components.items()}, self)

    def call(self, name: str, inputs: list[torch.Tensor], states: list[torch.Tensor]) -> list[torch.Tensor]:
        module = self._module(name)
        # for each call, because engines of one model share its modules
        kernel, attention = linear_kernel(module, self._kernel), attention_kernel(module, self._attention)
        with torch.no_grad(), self._threads(name, module), kernel, attention:
            result = module(*inputs, *states)
        return list(result) if isinstance(result, tuple) else [result]

    def _threads(self, name: str, module: nn.Module) -> AbstractContextManager[None]:
        if name not in self._is_small:
            size = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
            self._is_small[name] = size < LEAST_BYTES_FOR_THREADS
        return one_thread() if self._is_small[name] else nullcontext()


def perturbed(kernel: LinearKernel, dtype: torch.dtype = torch.float32) -> LinearKernel:
    """`kernel` with the effect of another order of sums in `dtype`.

    Moves the inputs by about a unit in the last place of the largest value of their row. The noise follows
    from the inputs, so a result does not depend on which calls came before.
    """

    def multiply(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
        generator = torch.Generator().manual_seed(crc32(x.contiguous().numpy().tobytes()))
        unit = x.abs().amax(-1, keepdim=True) * torch.finfo(dtype).eps
        return kernel(x + unit * torch.randn(x.shape, generator=generator), linear)

    return multiply


class EagerStream(Stream):
    """States as arrays, which each call reads and replaces."""

    def __init__(self, signatures: dict[str, Signature], engine: EagerEngine):
        super().__init__(signatures, engine.lock)
        self._engine = engine
        self.reset()

    def reset(self) -> None:
        self._states = empty_states(self.signatures.values())

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        return copy_states(self._states, states, positions)

    def _load(self, states: Arrays) -> None:
        write_states(self._states, states)

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        signature = self.signatures[component]
        arguments = [torch.from_numpy(np.array(inputs[spec.name])) for spec in signature.inputs]
        names = [state.name for state in signature.states]
        given = [torch.from_numpy(self._states[name]) for name in names]
        results = self._engine.call(component, arguments, given)
        _check_results(component, signature, inputs, results)
        for name, before, after in zip(names, given, results[len(signature.outputs) :], strict=True):
            # written in place otherwise; storing views of views would keep all of them alive
            if after is not before:
                self._states[name] = after.numpy()
        return {spec.name: result.numpy() for spec, result in zip(signature.outputs, results, strict=False)}


def _check_results(component: str, signature: Signature, inputs: Arrays, results: list[torch.Tensor]) -> None:
    """Raises ExportError if the outputs and states of a module do not fit its signature."""
    sizes = {
        dim: size
        for spec in signature.inputs
        for dim, size in zip(spec.shape, inputs[spec.name].shape, strict=True)
    }
    expected = [
        (f"output {spec.name}", spec.dtype, [_size(dim, sizes) for dim in spec.shape])
        for spec in signature.outputs
    ]
    expected += [(f"state {state.name}", state.dtype, list(state.shape)) for state in signature.states]
    if len(results) != len(expected):
        raise ExportError(
            f"component {component}: the module returns {len(results)} tensors, its signature has "
            f"{len(expected)} outputs and states"
        )
    if len({id(result) for result in results}) < len(results):
        raise ExportError(
            f"component {component}: the module returns one tensor twice, which no artifact can; "
            "return a clone"
        )
    for (what, dtype, shape), result in zip(expected, results, strict=True):
        found = str(result.dtype).removeprefix("torch.")
        if (found, list(result.shape)) != (dtype, shape):
            raise ExportError(
                f"component {component}: {what} is {found} {list(result.shape)}, its signature says "
                f"{dtype} {shape}; correct the signature or the module"
            )


def _size(dim: Dimension, sizes: Mapping[Dimension, int]) -> int:
    """A size of an output. `1920*T` is a multiple of the size of an input."""
    if isinstance(dim, int):
        return dim
    factor, _, name = dim.rpartition("*")
    return int(factor or 1) * sizes[name]


def check_signatures(graph: Graph, layout: LayoutName, kernel: LinearKernel) -> None:
    """Runs every component of a graph once. Raises ExportError if the results differ from a signature."""
    engine = EagerEngine(graph.components, lambda name: graph.module, layout, kernel)
    for component in graph.components:
        smallest = {dim: low for dim, (low, _) in component.signature.dims.items()}
        engine.stream().run(component.name, component.example(0, **smallest))
