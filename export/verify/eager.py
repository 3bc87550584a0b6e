"""The eager engine: the same modules in torch, in the arithmetic of a target. The reference of every comparison."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from bundle.bundle import ComponentEntry
from export.manifest import component_entry
from export.targets.base import EntryPoint
from model.component import Component
from model.layers.attention import LAYOUTS, ReferenceAttention, use_attention
from quantize.linear import Product, QuantizedLinear, float_activations, use_product
from runtime.engines.base import Arrays, Engine, Stream, check_states, copied, empty_states


class EagerEngine(Engine):
    """Runs components as torch modules: `product` is how quantised linears multiply, `layout` how caches lie."""

    def __init__(
        self,
        components: list[Component],
        cache_length: int,
        layout: str,
        product: Product = float_activations,
        find: Callable[[str], Component] | None = None,
    ):
        """`find(name)` gives a component with its weights in place; by default those of `components`, which then need them."""
        super().__init__()
        self._components = {component.name: component for component in components}
        self._find = find or self._components.__getitem__
        self._cache_length, self._attention, self._product = cache_length, ReferenceAttention(layout), product
        self.layout, self.identity = layout, "eager"

    def stream(self) -> EagerStream:
        entries = tuple(
            component_entry(c, EntryPoint("eager", c.graph), "", {"bits_per_weight": 32.0, "weight_bytes": 0})
            for c in self._components.values()
        )
        return EagerStream(entries, self._cache_length, self)

    def call(self, name: str, inputs: list[torch.Tensor], states: list[torch.Tensor]) -> list[torch.Tensor]:
        module = self._find(name).module
        use_product(
            module, self._product
        )  # on every call: engines of one model share its modules, and lowering spells its own
        use_attention(module, self._attention)
        with torch.no_grad():
            result = module(*inputs, *states)
        return list(result) if isinstance(result, tuple) else [result]


def reordered(product: Product, dtype: torch.dtype = torch.float32) -> Product:
    """`product` as another order of sums in `dtype` would have it: inputs moved by about a unit in the last place of their row's peak."""
    generator = torch.Generator().manual_seed(0)

    def moved(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
        unit = x.abs().amax(-1, keepdim=True) * torch.finfo(dtype).eps
        return product(x + unit * torch.randn(x.shape, generator=generator), linear)

    return moved


class EagerStream(Stream):
    def __init__(self, entries: tuple[ComponentEntry, ...], cache_length: int, engine: EagerEngine):
        super().__init__(entries, cache_length, engine)
        self._engine, self.row_axis = engine, LAYOUTS[engine.layout].rows
        self.reset()

    def reset(self) -> None:
        self._states = empty_states(self.components)

    def snapshot(self) -> Arrays:
        return copied(self._states)

    def save_rows(self, count: int) -> Arrays:
        return {
            name: np.take(self._states[name], range(min(count, shape[self.row_axis])), self.row_axis)
            for name, shape in self._caches().items()
        }

    def restore(self, states: Arrays) -> None:
        check_states(self.components, states)
        self._states = copied(states)

    def _run(self, entry: ComponentEntry, inputs: Arrays) -> Arrays:
        arguments = [torch.from_numpy(np.array(inputs[spec.name])) for spec in entry.signature.inputs]
        names = [state.name for state in entry.signature.states]
        given = [torch.from_numpy(self._states[name]) for name in names]
        results = self._engine.call(entry.name, arguments, given)
        arrays = [result.numpy() for result in results]
        for name, before, after, array in zip(
            names, given, results[len(entry.signature.outputs) :], arrays[len(entry.signature.outputs) :], strict=True
        ):
            if (
                after is not before
            ):  # else it was written in place, and a view of each view would hold them all
                self._states[name] = array
        return dict(zip((spec.name for spec in entry.signature.outputs), arrays, strict=False))
