"""ExecuTorch. The only part of the runtime that needs torch, because ExecuTorch's own Python package does.

A program keeps states in mutable buffers that its methods share. Streams take turns: when another stream calls, the
states of the one before are read out through `GRAPH.read`, and its own put in through `GRAPH.write`; of caches only the
rows that were written.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator, MutableMapping
from importlib.metadata import version
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from bundle.bundle import Bundle
from bundle.cache import read_method, write_method
from bundle.errors import VoxportError, first_line
from bundle.manifest import ComponentEntry
from bundle.spec import StateSpec
from runtime.engines.base import Engine, Stream
from runtime.engines.states import Arrays, check_states, empty_states, put_rows, unique_caches


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
    """A program per graph. Programs and methods load on first use."""

    def __init__(self, bundle: Bundle, threads: int | None = None):
        super().__init__()
        if any(_cache_rows(entry) and not entry.state_rows_per_call for entry in bundle.components):
            raise VoxportError(
                f"{bundle.folder}: its programs move whole caches, as those of an earlier voxport did; export the bundle again"
            )
        with warnings.catch_warnings(), _stderr_kept():
            warnings.simplefilter("ignore")
            import torch
            from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  registers the cache operators
            from executorch.extension.pybindings import portable_lib
            from executorch.runtime import Runtime

            portable_lib._unsafe_reset_threadpool(threads or os.cpu_count() or 1)
        self.bundle, self.identity = bundle, f"executorch {version('executorch')}"
        self._torch, self._runtime = torch, Runtime.get()
        self._programs: dict[str, Any] = {}  # kept: methods point into them
        self._methods: dict[str, Any] = {}
        self.owner: MutableMapping[str, ExecuTorchStream] = (
            WeakValueDictionary()
        )  # a stream that is gone needs its states no more

    def execute(self, file: str, method: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
        loaded = self._methods.get(method) or self._load(file, method)
        try:
            tensors = [self._torch.from_numpy(np.ascontiguousarray(array)) for array in inputs]
            with self._one_pool():
                return [tensor.numpy() for tensor in loaded.execute(tensors)]  # copies, not views
        except (RuntimeError, KeyError) as error:
            raise self._fault(file, method, error, []) from None

    def _load(self, file: str, method: str) -> Any:
        path = self.bundle.folder / file
        log: list[str] = []
        try:
            with _stderr_kept() as log:
                if file not in self._programs:
                    self._programs[file] = self._runtime.load_program(path)
        except RuntimeError as error:
            raise VoxportError(f"{path}: ExecuTorch cannot open it: {_reason(error, log)}") from None
        try:
            with _stderr_kept() as log:
                self._methods[method] = self._programs[file].load_method(method)
        except (RuntimeError, KeyError) as error:
            raise self._fault(file, method, error, log) from None
        return self._methods[method]

    def _fault(self, file: str, method: str, error: Exception, log: list[str]) -> VoxportError:
        return VoxportError(
            f"{self.bundle.folder / file}: method {method}: ExecuTorch failed: {_reason(error, log)}"
        )

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
    def __init__(self, engine: ExecuTorchEngine):
        self._entries = {entry.name: entry for entry in engine.bundle.components}
        super().__init__({name: entry.signature for name, entry in self._entries.items()}, engine.lock)
        self._engine = engine
        self._graphs = {entry.graph: entry for entry in self._entries.values() if entry.signature.states}
        self.reset()

    def reset(self) -> None:
        """Nothing is written into the caches: what lies beyond the last row is masked or not read."""
        with self.lock:
            self._saved = {
                state.name: np.zeros(self._shape(state, 0), state.dtype)
                for entry in self._graphs.values()
                for state in entry.signature.states
            }
            self._rows = dict.fromkeys(self._graphs, 0)  # of the caches of a graph, those written
            self._disown()

    def snapshot(self) -> Arrays:
        states = empty_states(self.signatures.values())
        with self.lock:
            current = self._current()
        for name, array in states.items():
            array[:, : current[name].shape[1]] = current[name]
        return states

    def restore(self, states: Arrays) -> None:
        check_states(self.signatures.values(), states)
        rows = {
            graph: max(
                (_rows_used(states[state.name]) for state in entry.signature.states if state.cache), default=0
            )
            for graph, entry in self._graphs.items()
        }
        kept = [
            (state, rows[graph]) for graph, entry in self._graphs.items() for state in entry.signature.states
        ]
        saved = {
            state.name: (states[state.name][:, :count] if state.cache else states[state.name]).copy()
            for state, count in kept
        }
        with self.lock:
            self._saved, self._rows = saved, rows
            self._disown()

    def save_rows(self, count: int) -> Arrays:
        with self.lock:
            current = self._current()
        return {name: current[name][:, :count].copy() for name in unique_caches(self.signatures.values())}

    def load_rows(self, rows: Arrays) -> None:
        found = {
            name: np.zeros(self._shape(state, rows[name].shape[1] if name in rows else 0), np.float32)
            for name, state in unique_caches(self.signatures.values()).items()
        }
        put_rows(found, unique_caches(self.signatures.values()), rows)
        with self.lock:
            self._saved = self._current() | found
            self._rows = {
                graph: max(
                    (found[state.name].shape[1] for state in entry.signature.states if state.cache), default=0
                )
                for graph, entry in self._graphs.items()
            }
            self._disown()

    def _shape(self, state: StateSpec, rows: int) -> tuple[int, ...]:
        return (state.shape[0], rows, *state.shape[2:]) if state.cache else state.shape

    def _disown(self) -> None:
        """What is saved counts; the next call writes it in."""
        for graph in self._graphs:
            if self._engine.owner.get(graph) is self:
                del self._engine.owner[graph]

    def _current(self) -> Arrays:
        """All states: what is saved, and of graphs whose program has this stream's states, those."""
        owned = [self._read(graph) for graph in self._graphs if self._engine.owner.get(graph) is self]
        return {name: array for states in (self._saved, *owned) for name, array in states.items()}

    def _read(self, graph: str) -> Arrays:
        entry, count = self._graphs[graph], self._rows[graph]
        states = {
            state.name: np.zeros(self._shape(state, count), state.dtype) for state in entry.signature.states
        }
        for rows in _moves(entry, count):
            for state, found in zip(
                entry.signature.states,
                self._engine.execute(entry.file, read_method(graph), rows),
                strict=True,
            ):
                states[state.name][:, rows[0] if state.cache else slice(None)] = found
        return states

    def _own(self, graph: str) -> None:
        owner = self._engine.owner.get(graph)
        if owner is self:
            return
        if owner:
            owner._saved |= owner._read(graph)
            del self._engine.owner[
                graph
            ]  # nobody's until all is written: a call may fail, or be interrupted, between two pieces
        entry = self._graphs[graph]
        for rows in _moves(entry, self._rows[graph]):
            taken = [
                self._saved[state.name][:, rows[0]] if state.cache else self._saved[state.name]
                for state in entry.signature.states
            ]
            self._engine.execute(entry.file, write_method(graph), [*rows, *taken])
        for state in entry.signature.states:  # the program has them from here on
            del self._saved[state.name]
        self._engine.owner[graph] = self

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        entry = self._entries[component]
        if entry.graph in self._graphs:
            self._own(entry.graph)
        outputs = self._engine.execute(
            entry.file, entry.entry_point, [inputs[spec.name] for spec in entry.signature.inputs]
        )
        if most := _cache_rows(entry):
            stride = next(state.cache.rows_per_position for state in entry.signature.states if state.cache)
            written = (int(inputs["position"][0]) + inputs[entry.signature.inputs[0].name].shape[1]) * stride
            self._rows[entry.graph] = min(most, max(self._rows[entry.graph], written))
        return dict(zip((spec.name for spec in entry.signature.outputs), outputs, strict=True))


def _cache_rows(entry: ComponentEntry) -> int:
    """Rows that the caches of a graph have; 0 where it has none."""
    return next((state.shape[1] for state in entry.signature.states if state.cache), 0)


def _moves(entry: ComponentEntry, rows: int) -> list[list[np.ndarray]]:
    """What the calls that move the states of a graph are given first: numbers of the rows of its caches; nothing where it has none."""
    most = entry.state_rows_per_call
    return (
        [[np.arange(start, min(start + most, rows), dtype=np.int64)] for start in range(0, rows, most)]
        if _cache_rows(entry)
        else [[]]
    )


def _rows_used(cache: np.ndarray) -> int:
    """Of [1, L, ...], up to the last that is not all zeros: those beyond were never written, so no position reads them."""
    used = np.flatnonzero(np.any(cache[0], axis=tuple(range(1, cache.ndim - 1))))
    return int(used[-1]) + 1 if len(used) else 0


def _reason(error: Exception, log: list[str]) -> str:
    """The C++ log's own line where there is one: the Python exception has only a number."""
    said = [line for line in log if "]" in line and (" E " in line or "[" in line)]
    return (said[-1].split("]", 1)[-1].strip() if said else "") or first_line(error)
