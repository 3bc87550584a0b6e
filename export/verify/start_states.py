"""Inputs and states from which the checks call components."""

from collections.abc import Collection, Mapping

import numpy as np

from model.component import Component
from runtime.engines.base import Arrays, Engine

MAX_ROWS = 24  # of the longest call
NOISE_STEP = 997  # values between the starts of two states' noise; a prime, so that no two rows are equal


def at_position(inputs: Arrays, position: int) -> Arrays:
    """The inputs with their position replaced, of a component that takes one."""
    return {**inputs, "position": np.array([position])} if "position" in inputs else inputs


def largest_example(component: Component, seed: int, limit: int = MAX_ROWS) -> Arrays:
    """Example inputs with every dynamic dimension at `limit` or at its upper bound."""
    return component.example(
        seed, **{dim: min(limit, high) for dim, (_, high) in component.signature.dims.items()}
    )


class StartStates:
    """States of eager, empty or after one call of `MAX_ROWS` rows.

    Keeps the last states, because the components of one graph start from the same ones.
    """

    def __init__(self, components: Mapping[str, Component], eager: Engine):
        self._components, self._eager = components, eager
        self._last: tuple[tuple[str, int, bool], Arrays] | None = None

    def find(self, graph: str, seed: int, is_warm: bool) -> Arrays:
        """All states. With `is_warm`, the first component of the graph was called."""
        key = (graph, seed, is_warm)
        if self._last is None or self._last[0] != key:
            stream = self._eager.stream()
            if is_warm:
                first = next(other for other in self._components.values() if other.graph == graph)
                stream.run(first.name, largest_example(first, seed + 100))
            self._last = key, stream.snapshot()
        return self._last[1]

    def rows(self, graph: str, seed: int, count: int) -> Arrays:
        """The first `count` rows of every cache after a call."""
        stream = self._eager.stream()
        stream.restore(self.find(graph, seed, count > 0))
        return stream.save_rows(count)


def full_states(eager: Engine, names: Collection[str]) -> Arrays:
    """A snapshot with noise in the named states and zeros in the others.

    All noise is cut from one array, because full caches of the published size take half a gigabyte.
    """
    states = eager.stream().snapshot()
    sizes = {name: states[name].size for name in sorted(names)}
    noise = 0.5 * np.random.default_rng(3).standard_normal(
        max(sizes.values(), default=0) + NOISE_STEP * len(sizes), dtype=np.float32
    )
    for index, (name, size) in enumerate(sizes.items()):
        states[name] = noise[NOISE_STEP * index :][:size].reshape(states[name].shape)
    return states
