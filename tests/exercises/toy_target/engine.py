"""The runtime half: an engine in NumPy. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voxport.bundle.manifest import Bundle
from voxport.bundle.spec import StateSpec
from voxport.runtime.engines.base import Arrays, Engine, EngineOptions, Stream
from voxport.runtime.engines.states import copy_states, empty_states, write_states


class NumpyEngine(Engine):
    def __init__(self, bundle: Bundle, options: EngineOptions) -> None:
        super().__init__()
        self.identity = f"numpy {np.__version__}"
        self.signatures = {entry.name: entry.signature for entry in bundle.components}
        (file,) = {entry.file for entry in bundle.components}
        with np.load(bundle.folder / file) as stored:
            arrays = dict(stored)
        self.body, self.head = (
            arrays[f"{path}.weight"] * arrays.get(f"{path}.scale", np.float32(1)) for path in ("body", "head")
        )

    def stream(self) -> NumpyStream:
        return NumpyStream(self)


class NumpyStream(Stream):
    def __init__(self, engine: NumpyEngine) -> None:
        super().__init__(engine.signatures, engine.lock)
        self._engine = engine
        self.reset()

    def reset(self) -> None:
        self._states = empty_states(self.signatures.values())

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        return copy_states(self._states, states, positions)

    def _load(self, states: Arrays) -> None:
        write_states(self._states, states)

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        first, rows = int(inputs["position"][0]), self._states["cache"][0, :, 0]  # [L, dim], a view
        end = first + inputs["x"].shape[1]
        rows[first:end] = inputs["x"][0] @ self._engine.body.T
        means = [rows[:count].mean(axis=0) for count in range(first + 1, end + 1)]
        return {"y": (np.stack(means) @ self._engine.head.T)[None]}
