"""Records what the graphs of a model get while it speaks or listens, as one call for each graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from voxport.bundle.spec import Kind, Signature
from voxport.export.verify.eager import EagerEngine
from voxport.model.graph import Component
from voxport.runtime.engines.states import empty_states

POSITION, CODES = "position", "codes"
CALLS = 1024
Call = Mapping[str, torch.Tensor]  # inputs by name


class RecordingEngine(EagerEngine):
    """Keeps the inputs of all calls, by component in the order of the calls.

    It has no `identity`, so each sequence begins with the calls that compute the rows of its prefix.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.identity = ""
        self.calls: list[tuple[str, Call]] = []

    def call(self, name: str, inputs: list[torch.Tensor], states: list[torch.Tensor]) -> list[torch.Tensor]:
        signature = self._components[name].signature
        names = (spec.name for spec in signature.inputs)
        call = {key: value.clone() for key, value in zip(names, inputs, strict=True)}
        outputs = super().call(name, inputs, states)
        if CODES in call and signature.outputs[0].kind is Kind.CHOICE:
            call[CODES] = outputs[0].clone()  # a replay keeps the codes that were drawn
        self.calls.append((name, call))
        return outputs


@dataclass
class JoinedCall:
    """Arguments of a graph's module for all recorded rows. `lengths`: rows of each sequence."""

    arguments: list[torch.Tensor]
    lengths: list[int] = field(default_factory=list)


def join(components: Sequence[Component], own: Sequence[Call], most: int = CALLS) -> JoinedCall:
    """`components` of one graph, the one with the widest bounds first, and their calls, at least one.

    Raises ValueError if a sequence does not begin at position 0.

    Rows of sequences stand behind each other; calls without states are rows of one batch, at most `most`. A
    convolution sees the end of the sequence before.
    """
    widest = components[0].signature
    if not widest.states:
        return JoinedCall(_batched(widest, own, most))
    dims = widest.dims
    axis = {spec.name: spec.shape.index(dim) for spec in widest.inputs for dim in spec.shape if dim in dims}
    first, *_ = axis.items()
    lengths, last = list[int](), -1
    for call in own:
        position = int(call[POSITION].flatten()[0])
        if position == 0:
            lengths.append(0)
        elif not lengths or position <= last:
            raise ValueError(f"a sequence begins at position {position}, expected 0")
        lengths[-1] += call[first[0]].shape[first[1]]
        last = position
    arguments = [
        torch.cat([call[spec.name] for call in own], dim=axis[spec.name])
        if spec.name in axis
        else torch.zeros_like(own[0][spec.name])
        if spec.name == POSITION
        else own[0][spec.name]
        for spec in widest.inputs
    ]
    states = empty_states([widest])
    return JoinedCall(
        [*arguments, *(torch.from_numpy(states[state.name]) for state in widest.states)], lengths
    )


def _batched(signature: Signature, calls: Sequence[Call], most: int) -> list[torch.Tensor]:
    """Inputs whose sizes are equal are joined; of others, as many calls as have the size of the first."""
    shapes = [tuple(value.shape[1:] for value in call.values()) for call in calls]
    equal = [call for call, shape in zip(calls, shapes, strict=True) if shape == shapes[0]]
    equal = equal[:: -(-len(equal) // most)]
    return [torch.cat([call[spec.name] for call in equal]) for spec in signature.inputs]
