"""ONNX Runtime. One session per graph; attention reads and writes the caches in place."""

import os
from pathlib import Path

import numpy as np
import onnxruntime as ort

from bundle.errors import UsageError, VoxportError, first_line
from bundle.manifest import Bundle
from bundle.spec import ONNX_PAST, ONNX_PRESENT, CacheSpec, Signature
from runtime.engines.base import (
    Arrays,
    Engine,
    EngineOptions,
    Stream,
    check_states,
    copy_states,
    empty_states,
    put_rows,
    unique_caches,
)

PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")  # in order of preference


class OnnxEngine(Engine):
    """A session opens on first use, so an unused component takes neither time nor memory."""

    def __init__(self, bundle: Bundle, options: EngineOptions):
        super().__init__()
        self.bundle, self.identity = bundle, f"onnxruntime {ort.__version__}"
        self._threads = options.threads or os.cpu_count() or 1
        self._sessions: dict[str, ort.InferenceSession] = {}

    def session(self, file: str) -> ort.InferenceSession:
        """The session of a file of the bundle. Raises VoxportError if ONNX Runtime cannot open it."""
        if file not in self._sessions:
            path, available = self.bundle.folder / file, ort.get_available_providers()
            try:
                self._sessions[file] = ort.InferenceSession(
                    self.read_graph(path),
                    self._session_options(),
                    providers=[provider for provider in PROVIDERS if provider in available],
                )
            except Exception as error:  # ONNX Runtime's exceptions have no common base below Exception
                raise VoxportError(f"{path}: ONNX Runtime cannot open it: {first_line(error)}") from None
        return self._sessions[file]

    def read_graph(self, path: Path) -> Path | bytes:
        """The graph of a session: its file, or its content."""
        return path

    def _session_options(self) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        # Threads that spin after a call compete with those of the next session: 325 ms per frame instead of
        # 180 ms.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        folder = str(self.bundle.folder.resolve())  # of weights, where a graph is not read from its file
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        options.log_severity_level = 4  # errors are raised; a second copy on stderr is not needed
        return options

    def stream(self) -> "OnnxStream":
        return OnnxStream(self)

    def batched(self, size: int) -> "OnnxStream":
        return OnnxStream(self, size)


class OnnxStream(Stream):
    """Caches are inputs and outputs that share one buffer, so a call writes only its new rows."""

    def __init__(self, engine: OnnxEngine, batch: int = 1, shared: Arrays | None = None):
        """`shared` are states in the memory of another stream, for one of its slots."""
        super().__init__({entry.name: entry.signature for entry in engine.bundle.components}, engine.lock)
        self._engine, self.batch = engine, batch
        # Where other streams use the same memory, states must be changed in place.
        self._shares_memory = batch > 1 or shared is not None
        self._bindings: dict[str, _SessionBinding] = {}
        self._states = empty_states(self.signatures.values(), batch) if shared is None else shared

    def reset(self) -> None:
        if self._shares_memory:
            for array in self._states.values():
                array[:] = 0
        else:
            self._bindings, self._states = {}, empty_states(self.signatures.values())

    def slot(self, index: int) -> "OnnxStream":
        rows = {name: array[index : index + 1] for name, array in self._states.items()}
        return OnnxStream(self._engine, shared=rows)

    def snapshot(self) -> Arrays:
        return copy_states(self._states)

    def restore(self, states: Arrays) -> None:
        check_states(self.signatures.values(), states, self.batch)
        if self._shares_memory:
            for name, array in states.items():
                self._states[name][:] = array
        else:
            self._bindings, self._states = {}, copy_states(states)

    def load_rows(self, rows: Arrays) -> None:
        put_rows(self._states, unique_caches(self.signatures.values()), rows, self.batch)

    def _current_states(self) -> Arrays:
        return self._states

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        entry = self._engine.bundle.component(component)
        if self.batch > entry.max_batch:
            raise UsageError(
                f"{component}: one call serves at most {entry.max_batch} slots, not {self.batch}"
            )
        session = self._engine.session(entry.file)
        try:
            if entry.file not in self._bindings:
                self._bindings[entry.file] = _SessionBinding(session, entry.signature, self._states)
            outputs = self._bindings[entry.file].run(inputs)
        except Exception as error:  # ONNX Runtime's exceptions have no common base below Exception
            raise VoxportError(f"{component}: ONNX Runtime failed: {first_line(error)}") from None
        for state in entry.signature.states:
            if (cache := state.cache) and cache.window:
                first = int(inputs["position"][0]) * cache.rows_per_position
                count = inputs[entry.signature.inputs[0].name].shape[1] * cache.rows_per_position
                _move_into_history(self._states[state.name], cache, first, count)
        return outputs


def _move_into_history(array: np.ndarray, cache: CacheSpec, position: int, count: int) -> None:
    """Moves new row p of a sliding-window cache from the staging area to row p mod history.

    `count` rows were written, from `position` on. See `bundle.spec.Layout`.
    """
    history = (cache.window or 1) - 1
    staged = min(position, history) if cache.max_call_rows == 1 else history
    if staged + count <= history:
        return
    skipped = max(history - staged, count - history)  # already in place, or overwritten by later rows
    rows, by_row = np.arange(skipped, count), array.swapaxes(0, cache.row_axis)
    if len(rows) == 1:
        by_row[(position + skipped) % history] = by_row[staged + skipped]
    else:
        by_row[(position + rows) % history] = by_row[staged + skipped : staged + count]


class _SessionBinding:
    """Inputs and outputs of one session, bound for one stream.

    Caches are bound once, everything else in each call. A graph without caches is run without bindings, which
    takes less time in Python.
    """

    def __init__(self, session: ort.InferenceSession, signature: Signature, states: Arrays):
        self._session, self._states = session, states
        self._binding = session.io_binding()
        self._outputs = [spec.name for spec in signature.outputs]
        self._carried = [state.name for state in signature.states if not state.cache]
        self._names = [*self._outputs, *(ONNX_PRESENT + name for name in self._carried)]
        self._buffers: list[ort.OrtValue] = []  # keeps the bound memory alive
        for state in signature.states:
            if state.cache:  # one buffer as past and present: new rows are written, nothing is copied
                value = ort.OrtValue.ortvalue_from_numpy(states[state.name])
                self._binding.bind_ortvalue_input(ONNX_PAST + state.name, value)
                self._binding.bind_ortvalue_output(ONNX_PRESENT + state.name, value)
                self._buffers.append(value)

    def run(self, inputs: Arrays) -> Arrays:
        """Runs the session, copies the states that are not caches back, and returns the outputs."""
        fed = inputs | {ONNX_PAST + name: self._states[name] for name in self._carried}
        values = self._run_bound(fed) if self._buffers else self._session.run(self._names, fed)
        for name, value in zip(self._carried, values[len(self._outputs) :], strict=True):
            self._states[name][:] = value
        return dict(zip(self._outputs, values, strict=False))

    def _run_bound(self, fed: Arrays) -> list[np.ndarray]:
        for name, array in fed.items():
            self._binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name in self._names:  # in each call: a bound output keeps the shape of the last call
            self._binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(self._binding)
        # in the order in which they were bound: caches first
        return [value.numpy() for value in self._binding.get_outputs()[len(self._buffers) :]]
