"""Engines in NumPy with random weights. Slots are computed separately, so batching changes no bit."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np

from voxport.bundle.spec import Signature, StateSpec
from voxport.runtime.engines.base import Arrays, Engine, Stream, batched_shape, unique_states
from voxport.runtime.engines.states import copy_states

Fault = Callable[[str, Arrays], None]


def random_weights(shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Normal float32 values, the same in every process."""
    generator = np.random.default_rng(7)
    return {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


class SlotEngine(Engine):
    """`fault(component, inputs)` may raise or edit inputs. `batches` counts calls per component and batch."""

    identity = "toy"
    signatures: dict[str, Signature]
    stream_type: "type[SlotStream]"
    weights: Arrays

    def __init__(self, fault: Fault = lambda component, inputs: None) -> None:
        super().__init__()
        self.fault = fault
        self.batches: Counter[tuple[str, int]] = Counter()

    def stream(self) -> "SlotStream":
        return self.batched(1)

    def batched(self, size: int) -> "SlotStream":
        states = unique_states(self.signatures.values())
        return self.stream_type(
            self, {name: np.zeros(batched_shape(state, size), state.dtype) for name, state in states.items()}
        )


class SlotStream(Stream):
    """States have one row per slot."""

    def __init__(self, engine: SlotEngine, states: Arrays) -> None:
        super().__init__(engine.signatures, engine.lock)
        self.engine, self.states = engine, states
        self.batch = len(next(iter(states.values())))

    @abstractmethod
    def compute(self, component: str, slot: int, inputs: Arrays) -> Arrays:
        """One call for one slot. Inputs and outputs have no batch axis."""

    def slot(self, index: int) -> Self:
        return self._part(slice(index, index + 1))

    def first(self, count: int) -> Self:
        return self._part(slice(count))

    def _part(self, slots: slice) -> Self:
        return type(self)(self.engine, {name: array[slots] for name, array in self.states.items()})

    def reset(self) -> None:
        for array in self.states.values():
            array[:] = 0

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        return copy_states(self.states, states, positions)

    def _load(self, states: Arrays) -> None:
        for name, array in states.items():
            self.states[name][tuple(map(slice, array.shape))] = array

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        self.engine.batches[component, self.batch] += 1
        self.engine.fault(component, inputs)
        rows = [
            self.compute(component, slot, {name: array[slot] for name, array in inputs.items()})
            for slot in range(self.batch)
        ]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
