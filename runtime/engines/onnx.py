"""ONNX Runtime. One session per graph, caches in buffers that attention reads and writes in place."""

from __future__ import annotations

import os

import numpy as np
import onnxruntime as ort

from bundle.bundle import Bundle, ComponentEntry
from bundle.errors import VoxportError, first_line
from runtime.engines.base import Arrays, Engine, Stream, check_states, copied, empty_states

PAST, PRESENT = "past.", "present."  # a state's input and output bear its name behind these


class OnnxEngine(Engine):
    """Sessions open on first use, so that a component nobody calls costs nothing."""

    def __init__(self, bundle: Bundle, threads: int | None = None):
        super().__init__()
        self.bundle, self.identity = bundle, f"onnxruntime {ort.__version__}"
        self._threads = threads or os.cpu_count() or 1
        self._sessions: dict[str, ort.InferenceSession] = {}

    def session(self, file: str) -> ort.InferenceSession:
        if file not in self._sessions:
            options = ort.SessionOptions()
            options.intra_op_num_threads = self._threads
            options.inter_op_num_threads = 1
            # threads of a session go on spinning after a call, beside those of the next call's session: 325 ms a frame instead of 180
            options.add_session_config_entry("session.force_spinning_stop", "1")
            options.log_severity_level = 4  # what goes wrong is raised; a second copy on stderr helps nobody
            wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
            providers = [provider for provider in wanted if provider in ort.get_available_providers()]
            try:
                self._sessions[file] = ort.InferenceSession(
                    self.bundle.folder / file, options, providers=providers
                )
            except Exception as error:  # ONNX Runtime's exceptions have no common base below Exception
                raise VoxportError(
                    f"{self.bundle.folder / file}: ONNX Runtime cannot open it: {first_line(error)}"
                ) from None
        return self._sessions[file]

    def stream(self) -> OnnxStream:
        return OnnxStream(self)

    def together(self, count: int) -> OnnxStream:
        return OnnxStream(self, count)


class OnnxStream(Stream):
    row_axis = 2

    def __init__(self, engine: OnnxEngine, count: int = 1, shared: Arrays | None = None):
        """`shared` are states in another stream's memory."""
        super().__init__(engine.bundle.manifest.components, engine.bundle.manifest.cache_length, engine)
        self._engine, self.count, self._is_part = engine, count, shared is not None
        self._bindings: dict[str, _Binding] = {}
        self._states = empty_states(self.components, count) if shared is None else shared

    def reset(self) -> None:
        if self._has_others():
            for array in self._states.values():
                array[:] = 0
        else:
            self._bindings, self._states = {}, empty_states(self.components)

    def _has_others(self) -> bool:
        """Whether other streams have the same memory, so that states must stay where they are."""
        return self.count > 1 or self._is_part

    def alone(self, index: int) -> OnnxStream:
        return OnnxStream(
            self._engine, shared={name: array[index : index + 1] for name, array in self._states.items()}
        )

    def snapshot(self) -> Arrays:
        return copied(self._states)

    def restore(self, states: Arrays) -> None:
        check_states(self.components, states, self.count)
        if self._has_others():
            for name, array in states.items():
                self._states[name][:] = array
        else:
            self._bindings, self._states = {}, copied(states)

    def load_rows(self, rows: Arrays) -> None:
        self._put_rows(self._states, rows)  # in place, and nothing else moves

    def save_rows(self, count: int) -> Arrays:
        return {name: self._states[name][:, :, :count].copy() for name in self._caches()}

    def _run(self, entry: ComponentEntry, inputs: Arrays) -> Arrays:
        session = self._engine.session(entry.file)
        try:
            if entry.file not in self._bindings:
                self._bindings[entry.file] = _Binding(session, entry, self._states)
            outputs = self._bindings[entry.file].run(inputs)
        except Exception as error:
            raise VoxportError(f"{entry.name}: ONNX Runtime failed: {first_line(error)}") from None
        self._keep_staged(entry, inputs)
        return outputs

    def _keep_staged(self, entry: ComponentEntry, inputs: Arrays) -> None:
        """Of a cache that rolls: rows that the call staged behind the history go into it, the row of position p to p mod its length."""
        for state in entry.states:
            if state.window is None:
                continue
            history, position = state.window - 1, int(inputs["position"][0]) * state.stride
            count = inputs[entry.inputs[0].name].shape[1] * state.stride
            first = min(position, history) if state.at_once == 1 else history
            if first + count <= history:
                continue
            skipped = max(history - first, count - history)  # in place already, or gone again
            rows, cache = np.arange(skipped, count), self._states[state.name]
            if len(rows) == 1:
                cache[:, :, (position + skipped) % history] = cache[:, :, first + skipped]
            else:
                cache[:, :, (position + rows) % history] = cache[:, :, first + skipped : first + count]


class _Binding:
    """One session's inputs and outputs for one stream, bound once; only what changes is bound again."""

    def __init__(self, session: ort.InferenceSession, entry: ComponentEntry, states: Arrays):
        self._session, self._states = session, states
        self._binding = session.io_binding()
        self._outputs = [spec.name for spec in entry.outputs]
        self._carried = [state.name for state in entry.states if not state.is_cache]
        self._buffers = []
        self._allocated = [*self._outputs, *(PRESENT + name for name in self._carried)]
        for name in self._allocated:
            self._binding.bind_output(name, "cpu")
        for state in entry.states:
            if state.is_cache:  # past and present are one buffer: new rows are written, nothing is copied
                value = ort.OrtValue.ortvalue_from_numpy(states[state.name])
                self._binding.bind_ortvalue_input(PAST + state.name, value)
                self._binding.bind_ortvalue_output(PRESENT + state.name, value)
                self._buffers.append(value)

    def run(self, inputs: Arrays) -> Arrays:
        for name, array in inputs.items():
            self._binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name in self._carried:
            self._binding.bind_cpu_input(PAST + name, self._states[name])
        for name in self._allocated:  # a bound output keeps the last call's shape
            self._binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(self._binding)
        values = self._binding.get_outputs()  # in the order in which they were bound
        outputs = {name: value.numpy() for name, value in zip(self._outputs, values, strict=False)}
        for name, value in zip(self._carried, values[len(self._outputs) :], strict=False):
            self._states[name][:] = value.numpy()
        return outputs
