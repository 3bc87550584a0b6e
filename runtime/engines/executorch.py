"""ExecuTorch. The only engine that needs torch, because ExecuTorch's Python package does.

A program keeps states in mutable buffers that its methods share, so it holds the states of one stream at a
time. When another stream calls, the engine reads out the states of the previous one (`GRAPH.read`) and writes
those of the caller (`GRAPH.write`). Only the written rows of a cache are moved.
"""

import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, MutableMapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from voxport.bundle.errors import IntegrityError, VoxportError, first_line
from voxport.bundle.manifest import Bundle, ComponentEntry
from voxport.bundle.spec import READ_METHOD, WRITE_METHOD, Bounds, StateSpec, TensorSpec
from voxport.runtime.engines.base import Arrays, Engine, EngineOptions, Stream, unique_states
from voxport.runtime.engines.states import copy_states, lazy_zeros

DTYPES = {"int32": 3, "int64": 4, "float16": 5, "float32": 6}  # ScalarType of ExecuTorch
TensorType = tuple[tuple[int, ...], int]  # sizes and ScalarType


def _import_executorch() -> tuple[Any, Any]:
    """torch, and ExecuTorch's extension module with the operators of caches and attention.

    Both are untyped. ExecuTorch's Python modules `executorch.runtime` and `custom_ops` import its exporter
    and torch's compiler as well: three seconds and 130 MB.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("MKL_NUM_THREADS", "1")  # ExecuTorch's threads each call MKL, which is in torch
    import torch

    try:
        from executorch.extension.pybindings import _C as extension
    except ImportError:  # before ExecuTorch 1.5
        from executorch.extension.pybindings import _portable_lib as extension

    libraries = list(Path(extension.__file__).parents[1].glob("llm/custom_ops/*custom_ops_aot_lib.*"))
    if len(libraries) != 1:
        raise VoxportError(
            f"executorch {version('executorch')}: expected one library of custom operators, found "
            f"{len(libraries)}; install it again: pip install --force-reinstall executorch"
        )
    torch.ops.load_library(libraries[0])
    return torch, extension


class ExecuTorchEngine(Engine):
    """One program per graph. Programs and methods load on first use.

    `active` maps a graph to the stream whose states its program holds. A stream that no longer exists is
    dropped.
    """

    def __init__(self, bundle: Bundle, options: EngineOptions):
        """Raises VoxportError on a bundle whose methods read and write whole caches."""
        super().__init__()
        if any(entry.signature.cache and not entry.state_rows_per_call for entry in bundle.components):
            raise VoxportError(
                f"{bundle.folder}: its programs read and write whole caches, expected blocks of rows; "
                "export the bundle again"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._torch, self._executorch = _import_executorch()
        self._executorch._unsafe_reset_threadpool(options.thread_count(bundle))
        self.bundle, self.identity = bundle, f"executorch {version('executorch')}"
        self._programs: dict[str, Any] = {}  # untyped in ExecuTorch; kept because methods point into them
        self._methods: dict[str, Any] = {}
        self.active: MutableMapping[str, ExecuTorchStream] = WeakValueDictionary()

    def open_files(self) -> None:
        with self.lock:
            for entry in self.bundle.components:
                if entry.entry_point not in self._methods:
                    self._load(entry.file, entry.entry_point)

    def execute(self, file: str, method: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Calls a method of a program file. The outputs are copies. Raises VoxportError."""
        loaded, threads = self._methods.get(method) or self._load(file, method), self._torch.get_num_threads()
        # The calling thread is one of ExecuTorch's pool. A number that was set for it precedes that for all.
        self._torch.set_num_threads(1)
        try:
            tensors = [self._torch.from_numpy(np.ascontiguousarray(array)) for array in inputs]
            return [tensor.numpy() for tensor in loaded(tensors)]
        except (RuntimeError, KeyError) as error:
            path = self.bundle.folder / file
            raise VoxportError(f"{path}: method {method}: ExecuTorch failed: {first_line(error)}") from None
        finally:
            self._torch.set_num_threads(threads)

    def _load(self, file: str, method: str) -> Any:
        path, step = self.bundle.folder / file, "ExecuTorch cannot open it"
        entries = [entry for entry in self.bundle.components if entry.file == file]
        try:
            if file not in self._programs:
                self._programs[file] = self._load_program(path)
            step = f"method {method}: ExecuTorch failed"
            check_method(path, self._programs[file].method_meta(method), entries)
            self._methods[method] = self._programs[file].load_method(method)
        except (RuntimeError, KeyError) as error:
            raise VoxportError(f"{path}: {step}: {first_line(error)}") from None
        return self._methods[method]

    def _load_program(self, path: Path) -> Any:  # untyped in ExecuTorch
        checked = self._executorch.Verification.InternalConsistency
        return self._executorch._load_program(str(path), program_verification=checked)

    def stream(self) -> "ExecuTorchStream":
        return ExecuTorchStream(self)


class ExecuTorchStream(Stream):
    """States live in the programs where the stream is active, and in `_saved` elsewhere.

    `_rows` counts written cache rows.
    """

    def __init__(self, engine: ExecuTorchEngine):
        entries = engine.bundle.components
        super().__init__({entry.name: entry.signature for entry in entries}, engine.lock)
        self._engine = engine
        self._graphs = {entry.graph: entry for entry in entries if entry.signature.states}
        self._rows: dict[str, int] = {}
        self.reset()

    def reset(self) -> None:
        """Empties all states.

        Cache rows are not cleared: rows beyond the last written one are masked or not read.
        """
        with self.lock:
            self._replace(_empty_rows(unique_states(self.signatures.values()).values(), 0))

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        found, current = {}, self._current_states()
        for state in states:
            found[state.name] = lazy_zeros(state.shape, state.dtype)
            written = current[state.name]
            found[state.name][tuple(map(slice, written.shape))] = written
        return copy_states(found, states, positions) if positions is not None else found

    def _load(self, states: Arrays) -> None:
        saved = self._current_states()
        for entry in self._graphs.values():
            found = {state: states[state.name] for state in entry.signature.states if state.name in states}
            rows = max(
                (_written_rows(state, array) for state, array in found.items() if state.cache), default=0
            )
            for state, array in found.items():
                saved[state.name] = np.array(array[:, :rows] if state.cache else array, state.dtype)
        self._replace(saved)

    def _replace(self, saved: Arrays) -> None:
        """Makes `saved` the valid copy, with the written rows of caches; the next call writes it to the
        programs.
        """
        self._saved = saved
        for graph, entry in self._graphs.items():
            counts = (saved[spec.name].shape[1] for spec in entry.signature.states if spec.cache)
            self._rows[graph] = max(counts, default=0)
            if self._engine.active.get(graph) is self:
                del self._engine.active[graph]

    def _activate(self, graph: str) -> None:
        """Writes the states of this stream to the program of a graph, after saving those of the active
        stream.
        """
        previous = self._engine.active.get(graph)
        if previous is self:
            return
        if previous:
            previous._saved |= previous._read_states(graph)
            # No stream is active until all blocks are written: a call between them may fail.
            del self._engine.active[graph]
        entry = self._graphs[graph]
        for block in _row_blocks(entry, self._rows[graph]):
            values = [
                self._saved[state.name][:, block[0]] if state.cache else self._saved[state.name]
                for state in entry.signature.states
            ]
            self._engine.execute(entry.file, f"{graph}{WRITE_METHOD}", [*block, *values])
        for state in entry.signature.states:
            del self._saved[state.name]
        self._engine.active[graph] = self

    def _current_states(self) -> Arrays:
        """All states; caches have their written rows only."""
        states = dict(self._saved)
        for graph in self._graphs:
            if self._engine.active.get(graph) is self:
                states |= self._read_states(graph)
        return states

    def _read_states(self, graph: str) -> Arrays:
        entry, count = self._graphs[graph], self._rows[graph]
        states = _empty_rows(entry.signature.states, count)
        for block in _row_blocks(entry, count):
            found = self._engine.execute(entry.file, f"{graph}{READ_METHOD}", block)
            for state, values in zip(entry.signature.states, found, strict=True):
                states[state.name][:, block[0] if state.cache else slice(None)] = values
        return states

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        entry = self._engine.bundle.component(component)
        signature = entry.signature
        if entry.graph in self._graphs:
            self._activate(entry.graph)
        arguments = [inputs[spec.name] for spec in signature.inputs]
        outputs = self._engine.execute(entry.file, entry.entry_point, arguments)
        if (state := signature.cache) and state.cache:
            end = int(inputs["position"][0]) + inputs[signature.inputs[0].name].shape[1]
            written = max(self._rows[entry.graph], end * state.cache.rows_per_position)
            self._rows[entry.graph] = min(state.rows, written)
        return dict(zip((spec.name for spec in signature.outputs), outputs, strict=False))  # checked by run


def _empty_rows(states: Iterable[StateSpec], rows: int) -> Arrays:
    """Zeros for the first `rows` rows of each cache, and for whole states that are not caches."""
    return {
        state.name: np.zeros(
            (state.shape[0], rows, *state.shape[2:]) if state.cache else state.shape, state.dtype
        )
        for state in states
    }


def _row_blocks(entry: ComponentEntry, rows: int) -> list[list[np.ndarray]]:
    """First arguments of the calls that read or write the states of a graph: int64 row numbers; none without
    a cache.
    """
    if entry.signature.cache is None:
        return [[]]
    size = entry.state_rows_per_call
    return [[np.arange(start, min(start + size, rows), dtype=np.int64)] for start in range(0, rows, size)]


def _written_rows(state: StateSpec, cache: np.ndarray) -> int:
    """Rows of a cache [1, L, ...] that was saved. A whole one may end with rows of zeros, which were never
    written.
    """
    if cache.shape[1] < state.rows:
        return int(cache.shape[1])
    used = np.flatnonzero(np.any(cache[0], axis=tuple(range(1, cache.ndim - 1))))
    return int(used[-1]) + 1 if len(used) else 0


def check_method(path: Path, metadata: Any, entries: Collection[ComponentEntry]) -> None:
    """Raises IntegrityError if a method does not take and return what the manifest says.

    A tensor of another size than the program was made for would end the process.
    `metadata` is ExecuTorch's, without types; its sizes are the largest that the program was made for.
    `entries` are the components of the program.
    """
    name = metadata.name()
    try:
        inputs = _types(metadata.num_inputs(), metadata.input_tensor_meta)
        outputs = _types(metadata.num_outputs(), metadata.output_tensor_meta)
    except (IndexError, RuntimeError, ValueError) as error:  # a damaged program
        raise IntegrityError(f"{path}: method {name}: {first_line(error)}; export the bundle again") from None
    for entry in entries:
        signature, states = entry.signature, [_block(entry, state) for state in entry.signature.states]
        if name == entry.entry_point:
            pairs = [
                ("inputs", inputs, [_largest(spec, signature.dims) for spec in signature.inputs]),
                ("outputs", outputs, [_largest(spec, signature.dims) for spec in signature.outputs]),
            ]
        elif name == entry.graph + READ_METHOD:
            pairs = [("states", outputs, states)]
        elif name == entry.graph + WRITE_METHOD:
            pairs = [("states", inputs[-len(states) :], states)]
        else:
            continue
        for what, found, expected in pairs:
            if not _types_match(expected, found, exactly=what == "states"):
                raise IntegrityError(
                    f"{path}: method {name} has {what} {_text(found)}, the manifest says {_text(expected)} "
                    f"for {entry.name}; export the bundle again"
                )


def _types(count: int, metadata: Callable[[int], Any]) -> list[TensorType]:
    return [(tuple(metadata(index).sizes()), metadata(index).dtype()) for index in range(count)]


def _largest(spec: TensorSpec, dims: dict[str, Bounds]) -> TensorType:
    """The largest sizes. A multiple of a named dimension, as outputs have it, counts as 1."""
    sizes = [dims.get(size, (1, 1))[1] if isinstance(size, str) else size for size in spec.shape]
    return tuple(sizes), DTYPES[spec.dtype]


def _block(entry: ComponentEntry, state: StateSpec) -> TensorType:
    """What one call reads or writes of a state: some rows of a cache, the whole of any other."""
    sizes = list(state.shape)
    if state.cache:
        sizes[state.cache.row_axis] = entry.state_rows_per_call
    return tuple(sizes), DTYPES[state.dtype]


def _types_match(expected: list[TensorType], found: list[TensorType], exactly: bool) -> bool:
    if exactly or len(expected) != len(found):
        return expected == found
    return all(
        dtype == found_dtype
        and len(sizes) == len(found_sizes)
        and all(size <= limit for size, limit in zip(sizes, found_sizes, strict=True))
        for (sizes, dtype), (found_sizes, found_dtype) in zip(expected, found, strict=True)
    )


def _text(types: list[TensorType]) -> str:
    names = {number: name for name, number in DTYPES.items()}
    return ", ".join(f"{names.get(dtype, dtype)} {list(sizes)}" for sizes, dtype in types)[:500] or "none"
