"""ONNX Runtime on the processor or on CUDA. One session per graph.

Attention reads and writes the caches in place. On CUDA, states stay in the memory of the device. No other
module imports onnxruntime: this package imports `bundle` first, which turns off its telemetry.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
import onnxruntime as ort

from voxport.bundle.errors import EngineUnavailable, IntegrityError, UsageError, VoxportError, first_line
from voxport.bundle.manifest import Bundle, ComponentEntry, ExportJob
from voxport.bundle.spec import ONNX_PAST, ONNX_PRESENT, Dimension, Signature, StateSpec
from voxport.runtime.engines import CUDA_PRECISION
from voxport.runtime.engines.base import (
    LEAST_BYTES_FOR_THREADS,
    Arrays,
    Engine,
    EngineOptions,
    Stream,
    unique_states,
)
from voxport.runtime.engines.states import HostStates, States

if TYPE_CHECKING:
    from voxport.runtime.engines.cuda import Device

__all__ = ["CPU", "CUDA", "OnnxEngine", "OnnxStream", "check_session", "load_cuda", "open_device", "ort"]
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
DEVICES = ("auto", "cpu", "cuda")
INSTALL = "pip install 'onnxruntime-gpu[cuda,cudnn]' in place of onnxruntime"
log = logging.getLogger(__name__)


def open_device(job: ExportJob, name: str | None) -> Device | None:
    """The device that states are on, or None for the processor.

    `name` is one of `DEVICES`. None means `auto`, which is CUDA if the bundle computes in float16 and CUDA
    loads. Raises UsageError, EngineUnavailable or VoxportError if `cuda` is not possible.
    """
    if name not in (None, *DEVICES):
        raise UsageError(f"device {name!r}: expected one of {', '.join(DEVICES)}", field="device")
    is_asked, fits_cuda = name == "cuda", job.compute_precision == CUDA_PRECISION
    if is_asked and not fits_cuda:
        raise UsageError(
            f"device cuda: for bundles that compute in {CUDA_PRECISION}; "
            f"export with compute precision {CUDA_PRECISION}",
            field="device",
        )
    available = ort.get_available_providers()
    if name == "cpu" or not fits_cuda or (CUDA not in available and not is_asked):
        return None
    if CUDA not in available:
        found = f"onnxruntime {ort.__version__} has {', '.join(available)}"
        raise EngineUnavailable(f"device cuda: {found}, but no {CUDA}; {INSTALL}", field="device")
    try:
        return load_cuda()
    except Exception as error:  # ONNX Runtime's exceptions have no common base below Exception
        text = f"device cuda: {CUDA} does not load: {first_line(error)}"
        if is_asked:
            advice = f"it needs a driver, CUDA {ort.cuda_version} and cuDNN 9: {INSTALL}"
            raise VoxportError(f"{text}; {advice}", field="device") from None
        log.warning("%s; the processor runs the bundle", text)
        return None


def load_cuda() -> Device:
    """Loads the libraries of CUDA. Raises an exception of ONNX Runtime or of the system."""
    from voxport.runtime.engines.cuda import Cuda

    with redirect_stdout(sys.stderr):  # the names of libraries that were not found
        ort.preload_dlls()
    ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", 0)
    return Cuda(ort.cuda_version)


class OnnxEngine(Engine):
    """A session opens on first use, or ahead in a thread of its own. A component that is neither called nor
    opened ahead takes no time and no memory.
    """

    def __init__(self, bundle: Bundle, options: EngineOptions):
        super().__init__()
        self.bundle, self._device = bundle, open_device(bundle.job, options.device)
        self.identity = f"onnxruntime {ort.__version__}{', cuda' if self._device else ''}"
        self._threads = options.thread_count(bundle)
        self._sessions: dict[str, Future[ort.InferenceSession]] = {}
        self._openers = ThreadPoolExecutor(os.cpu_count(), "session opener")
        self._options: list[ort.SessionOptions] = []
        finalize(self, _end_openings, self._openers, self._options)

    def open_ahead(self, components: Collection[str] = ()) -> None:
        for entry in self.bundle.components:
            if not components or entry.name in components:
                self._opening(entry.file)

    def open_files(self) -> None:
        self.open_ahead()
        for file in {entry.file for entry in self.bundle.components}:
            self.session(file)

    def session(self, file: str) -> ort.InferenceSession:
        """The session of a file of the bundle. Raises VoxportError if ONNX Runtime cannot open it."""
        opening = self._opening(file)
        try:
            return opening.result()
        except VoxportError as error:
            with self.lock:  # the next call tries again
                if self._sessions.get(file) is opening:
                    del self._sessions[file]
            raise VoxportError(str(error)) from None

    def _opening(self, file: str) -> Future[ort.InferenceSession]:
        with self.lock:
            if file not in self._sessions:
                entries = [entry for entry in self.bundle.components if entry.file == file]
                largest = max((entry.weight_bytes for entry in entries), default=0)
                options = self.session_options(1 if largest < LEAST_BYTES_FOR_THREADS else self._threads)
                self._options.append(options)
                providers = [CUDA, CPU] if self._device else [CPU]
                # no reference to the engine: it may end while sessions open
                work = (self.read_graph, self.bundle.folder / file, options, providers, entries)
                self._sessions[file] = self._openers.submit(_open_session, *work)
            return self._sessions[file]

    @staticmethod
    def read_graph(path: Path) -> Path | bytes:
        """The graph of a session: its file, or its content."""
        return path

    def session_options(self, threads: int) -> ort.SessionOptions:
        """The options of a session that computes with `threads` threads."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # threads that spin after a call compete with the next session's threads
        options.add_session_config_entry("session.force_spinning_stop", "1")
        # The plan of shared buffers takes half a minute for a graph of 6,000 nodes, and saves little memory.
        options.enable_mem_reuse = False
        options.log_severity_level = 4  # errors are raised; a second copy on stderr is not needed
        return options

    def stream(self) -> OnnxStream:
        return self.batched(1)

    def batched(self, size: int) -> OnnxStream:
        specs = unique_states(entry.signature for entry in self.bundle.components)
        dtype = self.bundle.job.compute_precision
        if self._device:
            from voxport.runtime.engines.cuda import DeviceStates

            return OnnxStream(self, DeviceStates(self._device, specs, dtype, size))
        return OnnxStream(self, HostStates(specs, dtype, size))

    def bandwidth(self, threads: int | None) -> float:
        return self._device.bandwidth() if self._device else super().bandwidth(threads)


def _end_openings(openers: ThreadPoolExecutor, options: Collection[ort.SessionOptions]) -> None:
    """Sessions that are being opened end with an error, and the process need not wait for them."""
    openers.shutdown(wait=False, cancel_futures=True)
    for each in options:
        each.set_load_cancellation_flag(True)


def _open_session(
    read_graph: Callable[[Path], Path | bytes],
    path: Path,
    options: ort.SessionOptions,
    providers: list[str],
    entries: Collection[ComponentEntry],
) -> ort.InferenceSession:
    try:
        # the fallback prints to stdout, where samples may go
        session = ort.InferenceSession(read_graph(path), options, providers=providers, enable_fallback=False)
    except Exception as error:  # ONNX Runtime's exceptions have no common base below Exception
        raise VoxportError(f"{path}: ONNX Runtime cannot open it: {first_line(error)}") from None
    check_session(session, path, entries)
    return session


class OnnxStream(Stream):
    """Caches are inputs and outputs that share one buffer, so a call writes only its new rows."""

    def __init__(self, engine: OnnxEngine, states: States):
        super().__init__({entry.name: entry.signature for entry in engine.bundle.components}, engine.lock)
        self._engine, self._states, self.batch = engine, states, states.batch
        self._bindings: dict[str, _SessionBinding] = {}
        self._active: Sequence[int] = range(self.batch)  # slots of the call in progress
        self._first: dict[int, OnnxStream] = {}  # by number of slots; each has bindings for its batch

    def reset(self) -> None:
        self._states.clear()
        self._bindings = {}  # the addresses of states may have changed

    def slot(self, index: int) -> OnnxStream:
        return OnnxStream(self._engine, self._states.part(index, 1))

    def first(self, count: int) -> OnnxStream:
        if count == self.batch:
            return self
        if count not in self._first:
            self._first[count] = OnnxStream(self._engine, self._states.part(0, count))
        return self._first[count]

    def run_active(self, component: str, inputs: Arrays, active: Sequence[int]) -> Arrays:
        with self.lock:
            self._active = active
            try:
                return self.run(component, inputs)
            finally:
                self._active = range(self.batch)

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        return {state.name: self._states.read(state.name, positions) for state in states}

    def _load(self, states: Arrays) -> None:
        for name, array in states.items():
            self._states.write(name, array)
        self._bindings = {}  # the addresses of states may have changed

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
        if entry.signature.cache and entry.signature.cache.window:
            self._move_into_history(entry.signature, inputs)
        return outputs

    def _move_into_history(self, signature: Signature, inputs: Arrays) -> None:
        """Moves the new rows of the sliding-window caches of each active slot; see `bundle.spec.Layout`."""
        rows = inputs[signature.inputs[0].name].shape[1]
        for slot in self._active:
            states = self._states.part(slot, 1) if self.batch > 1 else self._states
            for state in signature.states:
                if (cache := state.cache) and cache.window:
                    first = int(inputs["position"][slot]) * cache.rows_per_position
                    states.move_into_history(state.name, first, rows * cache.rows_per_position)
        self._states.wait()  # once, because a wait takes as long as the copies of all states


class _SessionBinding:
    """Inputs and outputs of one session, bound for one stream.

    States are bound once, everything else in each call. A graph without states runs without bindings, which
    takes less time in Python.
    """

    def __init__(self, session: ort.InferenceSession, signature: Signature, states: States):
        self._session, self._states = session, states
        self._binding = session.io_binding() if signature.states else None
        self._outputs = [spec.name for spec in signature.outputs]
        self._carried = [state.name for state in signature.states if not state.cache]
        if self._binding:
            self._bind_outputs(self._binding)  # before the states, so that outputs come first
            for name in (state.name for state in signature.states):
                # one buffer as past and present of a cache: new rows are written, nothing is copied
                result = states.result_address(name) if name in self._carried else states.address(name)
                place = (states.device, 0, states.dtype, states.shape(name))
                self._binding.bind_input(ONNX_PAST + name, *place, states.address(name))
                self._binding.bind_output(ONNX_PRESENT + name, *place, result)

    def _bind_outputs(self, binding: ort.IOBinding) -> None:
        for name in self._outputs:
            binding.bind_output(name, "cpu")

    def run(self, inputs: Arrays) -> Arrays:
        """Runs the session, replaces the states that are not caches, and returns the outputs."""
        binding = self._binding
        values = self._run_bound(binding, inputs) if binding else self._session.run(self._outputs, inputs)
        return dict(zip(self._outputs, values, strict=False))

    def _run_bound(self, binding: ort.IOBinding, inputs: Arrays) -> list[np.ndarray]:
        for name, array in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        self._bind_outputs(binding)  # in each call: a bound output keeps the shape of the last call
        self._session.run_with_iobinding(binding)
        self._states.keep_results(self._carried)
        return [value.numpy() for value in binding.get_outputs()[: len(self._outputs)]]


def check_session(session: Any, path: Path, entries: Collection[ComponentEntry]) -> None:
    """Raises IntegrityError if a session does not have the inputs and outputs of the components.

    Names and fixed sizes are compared, except axis 0, the batch.
    """
    for entry in entries:
        signature = entry.signature
        states = {state.name: state.shape for state in signature.states}
        inputs = {spec.name: spec.shape for spec in signature.inputs}
        outputs = {spec.name: spec.shape for spec in signature.outputs}
        inputs |= {ONNX_PAST + name: shape for name, shape in states.items()}
        outputs |= {ONNX_PRESENT + name: shape for name, shape in states.items()}
        _compare(f"{path}: input", inputs, session.get_inputs(), entry.name)
        _compare(f"{path}: output", outputs, session.get_outputs(), entry.name)


def _compare(
    what: str, expected: Mapping[str, tuple[Dimension, ...]], values: Collection[Any], component: str
) -> None:
    found = {value.name: value.shape for value in values}
    for name in sorted({*expected, *found}):
        if not _shapes_match(expected.get(name), found.get(name)):
            raise IntegrityError(
                f"{what} {name} is {found.get(name, 'missing')}, the manifest says "
                f"{list(expected[name]) if name in expected else 'nothing of it'} for {component}; "
                "export the bundle again"
            )


def _shapes_match(expected: tuple[Dimension, ...] | None, found: list[Any] | None) -> bool:
    if expected is None or found is None or len(expected) != len(found):
        return False
    pairs = list(zip(expected, found, strict=True))[1:]
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
