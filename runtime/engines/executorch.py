"""ExecuTorch. The only part of the runtime that needs torch, because ExecuTorch's own Python package does.

A program keeps states in mutable buffers that its methods share. Streams take turns: when another stream calls, the
states of the one before are read out through `GRAPH.read`, and its own put in through `GRAPH.write`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

from runtime.bundle import Bundle, ComponentEntry
from runtime.engines.base import Arrays, Engine, Stream, check_states, empty_states
from runtime.errors import RuntimeFault, first_line


@contextlib.contextmanager
def _stderr_kept() -> Iterator[list[str]]:
    """Keeps what the C++ runtime writes to stderr, for the error message; on success it is of no use to a caller."""
    lines: list[str] = []
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()


class ExecuTorchEngine(Engine):
    """Methods load on first use. Every component of a bundle lives in one program."""

    def __init__(self, bundle: Bundle, threads: int | None = None):
        with warnings.catch_warnings(), _stderr_kept():
            warnings.simplefilter("ignore")
            import torch
            from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  registers the cache operators
            from executorch.extension.pybindings import portable_lib
            from executorch.runtime import Runtime

            portable_lib._unsafe_reset_threadpool(threads or os.cpu_count() or 1)
        self.bundle, self.identity = bundle, f"executorch {version('executorch')}"
        self._torch = torch
        self._path = bundle.folder / bundle.manifest.components[0].file
        log: list[str] = []
        try:
            with _stderr_kept() as log:
                self._program = Runtime.get().load_program(self._path)  # kept: methods point into it
        except RuntimeError as error:
            raise RuntimeFault(f"{self._path}: ExecuTorch cannot open it: {_reason(error, log)}") from None
        self._methods: dict[str, Any] = {}
        self.owner: dict[str, ExecuTorchStream] = {}

    def execute(self, method: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
        log: list[str] = []
        try:
            with _stderr_kept() if method not in self._methods else contextlib.nullcontext(log) as log:
                if method not in self._methods:
                    self._methods[method] = self._program.load_method(method)
                tensors = [self._torch.from_numpy(np.ascontiguousarray(array)) for array in inputs]
                with self._one_pool():
                    return [tensor.numpy() for tensor in self._methods[method].execute(tensors)]  # copies, not views
        except (RuntimeError, KeyError) as error:
            raise RuntimeFault(f"{self._path}: method {method}: ExecuTorch failed: {_reason(error, log)}") from None

    @contextlib.contextmanager
    def _one_pool(self) -> Iterator[None]:
        """Small float products go to torch's own thread pool, whose threads then spin beside ExecuTorch's: three times slower."""
        threads = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        try:
            yield
        finally:
            self._torch.set_num_threads(threads)

    def stream(self) -> ExecuTorchStream:
        return ExecuTorchStream(self)


class ExecuTorchStream(Stream):
    row_axis = 1

    def __init__(self, engine: ExecuTorchEngine):
        super().__init__(engine.bundle.manifest.components, engine.bundle.manifest.cache_length)
        self._engine = engine
        self._names = {entry.graph: [state.name for state in entry.states] for entry in self.components.values() if entry.states}
        self.reset()

    def reset(self) -> None:
        self.restore(empty_states(self.components))

    def snapshot(self) -> Arrays:
        self._save_owned()
        return {name: array.copy() for name, array in self._saved.items()}

    def load_rows(self, rows: Arrays) -> None:
        self._save_owned()
        self._put_rows(self._saved, rows)
        self._disown()

    def restore(self, states: Arrays) -> None:
        check_states(self.components, states)
        self._saved = {name: np.array(array) for name, array in states.items()}
        self._disown()

    def _disown(self) -> None:
        """The next call writes the states in."""
        for graph in self._names:
            if self._engine.owner.get(graph) is self:
                del self._engine.owner[graph]

    def _save_owned(self) -> None:
        for graph in self._names:
            if self._engine.owner.get(graph) is self:
                self._save(graph)

    def _save(self, graph: str) -> None:
        self._saved.update(zip(self._names[graph], self._engine.execute(f"{graph}.read", []), strict=True))

    def _run(self, entry: ComponentEntry, inputs: Arrays) -> Arrays:
        graph = entry.graph
        if graph in self._names and self._engine.owner.get(graph) is not self:
            if graph in self._engine.owner:
                self._engine.owner[graph]._save(graph)
            self._engine.execute(f"{graph}.write", [self._saved[name] for name in self._names[graph]])
            self._engine.owner[graph] = self
        outputs = self._engine.execute(entry.entry_point, [inputs[spec.name] for spec in entry.inputs])
        return dict(zip((spec.name for spec in entry.outputs), outputs, strict=True))


def _reason(error: Exception, log: list[str]) -> str:
    """The C++ log's own line where there is one: the Python exception has only a number."""
    said = [line for line in log if "]" in line and (" E " in line or "[" in line)]
    return (said[-1].split("]", 1)[-1].strip() if said else "") or first_line(error)
