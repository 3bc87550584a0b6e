"""Speed of the published weights in eager PyTorch, measured like a bundle."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from voxport.bundle.files import folder_name
from voxport.bundle.spec import LayoutName, StateSpec
from voxport.export.estimate import graph_weights
from voxport.export.resolve import Resolved
from voxport.export.verify.eager import EagerEngine, EagerStream
from voxport.model.checkpoint import materialize
from voxport.runtime.bench import BenchTarget, measure
from voxport.runtime.engines.base import Arrays, copy_states, unique_states
from voxport.runtime.families import open_family
from voxport.runtime.families.base import BenchSettings, Figures
from voxport.runtime.machine import describe_machine

LAYOUT: LayoutName = "BSHD"


def bench_eager(resolved: Resolved, beside: Figures) -> Figures:
    """The measurement `beside` of a bundle, repeated with the model in bfloat16: 2 bytes per weight."""
    source, weights = resolved.source, graph_weights(resolved, float_bytes=2)
    family, constants = open_family(source.family.name), resolved.runtime_constants
    threads = beside["machine"]["threads"]
    voice = np.random.default_rng(0).standard_normal((beside["voice_rows"], constants.dim), dtype=np.float32)
    torch.set_num_threads(threads)
    target = BenchTarget(
        family,
        lambda: BFloat16Engine(resolved),
        constants,
        resolved.cache_length,
        {component: int(weights[graph].read) for component, graph in resolved.graph_of.items()},
        BenchSettings(voice, beside["prompt_tokens"]),
    )
    return {
        "bundle": {
            "name": folder_name(source.folder),
            "family": family.name,
            "target": "eager",
            "recipe": "bfloat16",
            "bytes": source.checkpoint.size,
        },
        "machine": describe_machine(threads, "torch"),
        **measure(target, threads, beside["frame"]["frames"]),
    }


class BFloat16Engine(EagerEngine):
    """Weights, activations and caches in bfloat16."""

    def __init__(self, resolved: Resolved):
        source, root = resolved.source, resolved.source.root()
        prefixes = {prefix for below in source.family.weights_of_graph.values() for prefix in below}
        # all in one call: a tied weight is read by its first name
        materialize(root, source.checkpoint, prefixes, _as_stored)
        root.to(torch.bfloat16)
        with torch.no_grad(), _bfloat16_autocast():  # constants are derived here
            modules = {
                graph: source.family.build(
                    graph, root, source.config, resolved.options, resolved.cache_length
                )
                for graph in source.family.weights_of_graph
            }
        for module in modules.values():
            module.to(torch.bfloat16)
        super().__init__(resolved.components(LAYOUT), lambda name: modules[resolved.graph_of[name]], LAYOUT)

    def stream(self) -> "BFloat16Stream":
        return BFloat16Stream(
            {name: component.signature for name, component in self._components.items()}, self
        )


def _bfloat16_autocast() -> torch.autocast:
    """Also casts what a module computes in single precision, for example angles."""
    return torch.autocast("cpu", torch.bfloat16)


def _as_stored(path: str, module: nn.Module, weight: torch.Tensor) -> nn.Module:
    module.weight = nn.Parameter(weight.to(torch.bfloat16), requires_grad=False)
    return module


class BFloat16Stream(EagerStream):
    """States as tensors of torch, because NumPy has no bfloat16."""

    def reset(self) -> None:
        states = unique_states(self.signatures.values()).values()
        self._tensors = {state.name: torch.zeros(state.shape, dtype=torch.bfloat16) for state in states}

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        arrays = {state.name: self._tensors[state.name].float().numpy() for state in states}
        return copy_states(arrays, states, positions)

    def _load(self, states: Arrays) -> None:
        for name, array in states.items():
            self._tensors[name][tuple(map(slice, array.shape))] = torch.from_numpy(array)

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        signature = self.signatures[component]
        arguments = [torch.from_numpy(inputs[spec.name]) for spec in signature.inputs]
        arguments = [
            argument.to(torch.bfloat16) if argument.is_floating_point() else argument
            for argument in arguments
        ]
        names = [state.name for state in signature.states]
        with _bfloat16_autocast():
            results = self._engine.call(component, arguments, [self._tensors[name] for name in names])
        self._tensors.update(zip(names, results[len(signature.outputs) :], strict=True))
        return {
            spec.name: result.float().numpy()
            for spec, result in zip(signature.outputs, results, strict=False)
        }
