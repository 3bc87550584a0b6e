"""Records what the graphs of a model get while it speaks or listens, as one call for each graph."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import torch

from voxport.bundle.spec import Kind, Signature
from voxport.export.verify.eager import EagerEngine
from voxport.model.graph import Component
from voxport.runtime.engines.states import empty_states

POSITION, CODES = "position", "codes"
CALLS = 1024
ROWS, LONGEST = 8192, 1024  # of all sequences, and of one
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
    """Arguments of a graph's module for all recorded rows.

    lengths: rows of each sequence.
    last: the last row of each call; None if the rows are a batch.
    """

    arguments: list[torch.Tensor]
    lengths: list[int] = field(default_factory=list)
    last: list[int] | None = None


def join(components: Sequence[Component], own: Sequence[Call], most: int = CALLS) -> JoinedCall:
    """`components` of one graph, the one with the widest bounds first, and their calls, at least one.

    Raises ValueError if a sequence does not begin at position 0.

    Rows of sequences stand behind each other, at most about `ROWS`: the first `LONGEST` of each. Calls
    without states are rows of one batch, at most `most`. A convolution sees the end of the sequence before.
    """
    widest = components[0].signature
    if not widest.states:
        return JoinedCall(_batched(widest, own, most))
    dims = widest.dims
    axis = {spec.name: spec.shape.index(dim) for spec in widest.inputs for dim in spec.shape if dim in dims}
    name, dim = next(iter(axis.items()))
    sequences = _sequences(own)
    counts = [[call[name].shape[dim] for call in calls] for calls in sequences]
    step = -(-sum(min(sum(each), LONGEST) for each in counts) // ROWS)
    sequences, counts = sequences[::step], counts[::step]
    kept = [max(1, bisect_right(list(accumulate(each)), LONGEST)) for each in counts]
    own = [call for calls, count in zip(sequences, kept, strict=True) for call in calls[:count]]
    rows = [each[:count] for each, count in zip(counts, kept, strict=True)]
    last = [row - 1 for row in accumulate(chain.from_iterable(rows))]
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
        [*arguments, *(torch.from_numpy(states[state.name]) for state in widest.states)],
        list(map(sum, rows)),
        last,
    )


def _sequences(calls: Sequence[Call]) -> list[list[Call]]:
    found, last = list[list[Call]](), -1
    for call in calls:
        position = int(call[POSITION].flatten()[0])
        if position == 0:
            found.append([])
        elif not found or position <= last:
            raise ValueError(f"a sequence begins at position {position}, expected 0")
        found[-1].append(call)
        last = position
    return found


def _batched(signature: Signature, calls: Sequence[Call], most: int) -> list[torch.Tensor]:
    """Inputs whose sizes are equal are joined; of others, as many calls as have the size of the first."""
    shapes = [tuple(value.shape[1:] for value in call.values()) for call in calls]
    equal = [call for call, shape in zip(calls, shapes, strict=True) if shape == shapes[0]]
    equal = equal[:: -(-len(equal) // most)]
    return [torch.cat([call[spec.name] for call in equal]) for spec in signature.inputs]
