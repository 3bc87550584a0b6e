"""The published weights in eager torch, timed as a bundle is: what `runtime bench --compare eager` stands beside."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from bundle.bundle import ComponentEntry
from export.manifest import component_entry
from export.source import Plan, Source
from export.targets.base import EntryPoint
from export.verify.eager import EagerEngine
from model.checkpoint import is_below, materialize
from model.component import Component
from model.layers.attention import LAYOUTS
from runtime.bench import Subject, machine, measure
from runtime.engines.base import Arrays, Stream
from runtime.families import open_family
from runtime.families.base import BenchSettings

LAYOUT = "BSHD"


def bench_eager(
    source: Source, plan: Plan, voice_rows: int, threads: int | None, frames: int, prompt_tokens: int
) -> dict[str, Any]:
    """`measure` of the model in bfloat16, as its checkpoint holds it: 2 bytes a weight."""
    family, switches = open_family(source.family.name), source.switches(plan)
    constants = family.parse_constants(
        source.family.constants(source.config, switches), switches.model_dump()
    )
    weights = {
        component.name: _bytes_read(source, component.graph) for component in source.describe(plan, LAYOUT)
    }
    settings = BenchSettings(
        np.random.default_rng(0).standard_normal((voice_rows, constants.dim), dtype=np.float32), prompt_tokens
    )
    if threads:
        torch.set_num_threads(threads)
    subject = Subject(
        family, lambda: BFloat16Engine(source, plan), constants, source.rows(plan), weights, settings
    )
    return {
        "bundle": {
            "name": source.folder.resolve().name,
            "family": source.family.name,
            "target": "eager",
            "recipe": "bfloat16",
            "bytes": source.checkpoint.path.stat().st_size,
        },
        "machine": machine(threads, "torch"),
        **measure(subject, threads, frames),
    }


def _bytes_read(source: Source, graph: str) -> int:
    """Of a call; of a table a few rows, counted as none; what is a constant at run time, neither."""
    root, prefixes = source.root(), source.family.weights_of_graph[graph]
    left_out = {
        f"{path}.weight"
        for path, module in root.named_modules()
        if isinstance(module, nn.Embedding) or source.family.is_constant(path)
    }
    return sum(
        2 * parameter.numel()
        for name, parameter in root.named_parameters(remove_duplicate=False)
        if name not in left_out and is_below(name, prefixes)
    )


class BFloat16Engine(EagerEngine):
    """Weights, activations and caches in bfloat16."""

    def __init__(self, source: Source, plan: Plan):
        root = source.root()
        prefixes = {prefix for below in source.family.weights_of_graph.values() for prefix in below}
        materialize(
            root, source.checkpoint, prefixes, _as_stored
        )  # at once: a tied weight is asked for by its first name
        root.to(torch.bfloat16)
        with torch.no_grad(), _half():  # constants are derived here
            components = source.family.components(
                root, source.config, source.switches(plan), source.rows(plan), LAYOUT
            )
        for component in components:
            component.module.to(torch.bfloat16)
        super().__init__(components, source.rows(plan), LAYOUT)

    def stream(self) -> BFloat16Stream:  # type: ignore[override]  # a stream whose states are torch's, because NumPy has no bfloat16
        return BFloat16Stream(self, tuple(self._components.values()), self._cache_length)


def _half() -> torch.autocast:
    """For what a module computes in single precision by itself, like angles."""
    return torch.autocast("cpu", torch.bfloat16)


def _as_stored(path: str, module: nn.Module, weight: torch.Tensor) -> nn.Module:
    module.weight = nn.Parameter(weight.to(torch.bfloat16), requires_grad=False)
    return module


class BFloat16Stream(Stream):
    row_axis = LAYOUTS[LAYOUT].rows

    def __init__(self, engine: BFloat16Engine, components: tuple[Component, ...], cache_length: int):
        read = {"bits_per_weight": 16.0, "weight_bytes": 0}
        super().__init__(
            tuple(component_entry(c, EntryPoint("eager", c.graph), "", read) for c in components),
            cache_length,
        )
        self._engine = engine
        self.reset()

    def reset(self) -> None:
        states = (state for entry in self.components.values() for state in entry.signature.states)
        self._states = {state.name: torch.zeros(state.shape, dtype=torch.bfloat16) for state in states}

    def snapshot(self) -> Arrays:
        return {name: state.float().numpy() for name, state in self._states.items()}

    def restore(self, states: Arrays) -> None:
        for name, array in states.items():
            self._states[name] = torch.from_numpy(array).to(torch.bfloat16)

    def _run(self, entry: ComponentEntry, inputs: Arrays) -> Arrays:
        arguments = [torch.from_numpy(inputs[spec.name]) for spec in entry.signature.inputs]
        arguments = [
            argument.to(torch.bfloat16) if argument.is_floating_point() else argument
            for argument in arguments
        ]
        names = [state.name for state in entry.signature.states]
        with _half():
            results = self._engine.call(entry.name, arguments, [self._states[name] for name in names])
        self._states.update(zip(names, results[len(entry.signature.outputs) :], strict=True))
        return {
            spec.name: result.float().numpy() for spec, result in zip(entry.signature.outputs, results, strict=False)
        }
