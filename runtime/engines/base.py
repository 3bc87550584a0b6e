"""`Engine` opens a bundle's components; `Stream` holds the states of one caller.

The inputs and outputs of every call are checked against the signature of its component.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock

import numpy as np

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.manifest import Bundle
from voxport.bundle.spec import MAX_ROW_POSITION, Dimension, Signature, StateSpec, TensorSpec

Arrays = dict[str, np.ndarray]
Sizes = dict[Dimension, int]  # sizes of the named dimensions of a call
# Weights of one component. With fewer, a second thread gains nothing for one stream, and makes a frame up to
# three times longer while other programs use the cores (docs/performance.md).
LEAST_BYTES_FOR_THREADS = 8 << 20


@dataclass(frozen=True)
class EngineOptions:
    """How an engine runs.

    `threads` None is a number that fits the bundle, see `thread_count`. `device` applies to ONNX bundles, see
    `runtime.engines.onnx.open_device`. The other two apply to Core ML bundles, see `open_coreml`. Core AI
    has `compute_units` too.
    """

    threads: int | None = None
    compute_precision: str | None = None
    compute_units: str | None = None
    device: str | None = None

    def thread_count(self, bundle: Bundle) -> int:
        """Threads of an engine: by default, all cores, or one for a bundle with small components."""
        largest = max((entry.weight_bytes for entry in bundle.components), default=0)
        return self.threads or (1 if largest < LEAST_BYTES_FOR_THREADS else os.cpu_count() or 1)


DEFAULT = EngineOptions()


class Engine(ABC):
    """Compiled code and weights, shared by all streams. `identity` names the software that computes.

    Calls from several threads run one after another, because each call uses all of the engine's threads.
    """

    identity: str

    def __init__(self) -> None:
        self.lock = RLock()

    @abstractmethod
    def stream(self) -> "Stream":
        """A new stream with empty states."""

    def open_ahead(self, components: Collection[str] = ()) -> None:  # noqa: B027  optional
        """Begins to open components that will be called, by default all, beside the caller.

        An engine that does not do this opens a component when it is first called.
        """

    def open_files(self) -> None:  # noqa: B027  optional
        """Opens all components and waits. Raises VoxportError on one that cannot be opened.

        An engine that does not do this opens a component when it is first called.
        """

    def batched(self, size: int) -> "Stream":
        """A stream with `size` slots. Its batchable components serve all slots in one call.

        Raises UsageError if a call serves only one slot.
        """
        if size == 1:
            return self.stream()
        raise UsageError(f"{self.identity}: one call serves one stream, not {size}")

    def bandwidth(self, threads: int | None) -> float:
        """Bytes per second that the memory of the weights can be read at, measured."""
        from voxport.runtime.machine import measure_bandwidth

        return measure_bandwidth(threads)


class Stream(ABC):
    """The states of one caller and the calls that change them. Two streams of one engine never share states.

    `signatures` has the signature of each component. `batch` is the number of slots: the size of axis 0.
    """

    batch = 1

    def __init__(self, signatures: Mapping[str, Signature], lock: "RLock | None" = None):
        """`lock` is the lock of the engine, for streams that share it."""
        self.signatures = dict(signatures)
        self.lock = lock or RLock()

    def run(self, component: str, inputs: Arrays) -> Arrays:
        """Calls a component, updates its states and returns its outputs.

        Raises UsageError on inputs that do not fit, IntegrityError on outputs that do not.
        """
        if component not in self.signatures:
            raise UsageError(f"no component {component!r}; there are {', '.join(self.signatures)}")
        sizes = check_inputs(component, self.signatures[component], inputs, self.batch)
        with self.lock:
            outputs = self._run(component, inputs)
        check_outputs(component, self.signatures[component], outputs, sizes)
        return outputs

    def run_rows(self, component: str, inputs: Arrays) -> Arrays:
        """As `run`, for inputs with any number of rows (axis 1).

        A component that takes fewer rows is called several times. If one of the calls raises, the states have
        the rows of the calls before.
        """
        signature = self.signatures[component]
        return join(signature, [self.run(component, piece) for piece in divide(signature, inputs)])

    @abstractmethod
    def _run(self, component: str, inputs: Arrays) -> Arrays: ...

    def run_active(self, component: str, inputs: Arrays, active: Sequence[int]) -> Arrays:
        """As `run`, for the slots `active` only. The others keep their states up to their position; what
        follows may be overwritten. Their outputs mean nothing.

        Raises UsageError if the engine cannot do this.
        """
        if len(active) < self.batch:
            raise UsageError(f"{component}: this stream cannot leave out slots of a batch")
        return self.run(component, inputs)

    def capacity(self, component: str) -> int:
        """Positions that the component's cache holds, or that its stream may reach.

        Raises UsageError without a cache.
        """
        capacity = self.signatures[component].capacity
        if capacity is None:
            raise UsageError(f"{component}: has no cache, so it has no capacity")
        return capacity

    def slot(self, index: int) -> "Stream":
        """One slot of the stream, for components that are not batched. It uses the same memory for states."""
        return self

    def first(self, count: int) -> "Stream":
        """The first `count` slots, for calls that leave the others as they are. It uses the same memory for
        states.
        """
        return self

    @abstractmethod
    def reset(self) -> None:
        """Empties every state."""

    def save(self, component: str | None = None, positions: int | None = None) -> Arrays:
        """Copies of the states of a component by name (None: of all components).

        A cache has the rows of its first `positions` positions (None: all rows). An engine may return another
        type of floats.
        """
        signatures = self.signatures.values() if component is None else [self.signatures[component]]
        with self.lock:
            return self._save(list(unique_states(signatures).values()), positions)

    def load(self, states: Arrays) -> None:
        """Writes what `save` returned, of this stream or of another one. Other states stay as they are.

        Rows of a cache behind the loaded ones mean nothing. Raises UsageError on states of another bundle.
        """
        check_states(self.signatures.values(), states, self.batch)
        with self.lock:
            self._load(states)

    @abstractmethod
    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays: ...

    @abstractmethod
    def _load(self, states: Arrays) -> None: ...


def unique_states(signatures: Iterable[Signature]) -> dict[str, StateSpec]:
    """The states of several components by name; components of one graph share them."""
    return {state.name: state for signature in signatures for state in signature.states}


def batched_shape(state: StateSpec, batch: int) -> tuple[int, ...]:
    return (batch, *state.shape[1:])


def row_axis(state: StateSpec) -> int | None:
    """The axis of the rows of a cache; None for any other state."""
    return state.cache.row_axis if state.cache else None


def check_states(signatures: Iterable[Signature], states: Arrays, batch: int = 1) -> None:
    """Raises UsageError that names the first of the saved `states` that these components do not have."""
    specs = unique_states(signatures)
    for name, array in states.items():
        shape = batched_shape(specs[name], batch) if name in specs else ()
        axis = row_axis(specs[name]) if name in specs else None
        fits = len(shape) == array.ndim and all(
            found <= size if index == axis else found == size
            for index, (found, size) in enumerate(zip(array.shape, shape, strict=True))
        )
        if not shape or not fits:
            expected = list(shape) or "no such state"
            raise UsageError(f"state {name} has shape {list(array.shape)}, this bundle has {expected}")


def divide(signature: Signature, inputs: Arrays) -> list[Arrays]:
    """The inputs of consecutive calls, each at the position behind the rows before."""
    dims = {spec.name: spec.shape[1] for spec in signature.inputs if _has_rows(spec)}
    if not dims:
        return [inputs]
    (dim,) = set(dims.values())  # all inputs of a call have as many rows
    most, count = signature.dims[str(dim)][1], max(inputs[name].shape[1] for name in dims)
    return [_piece(inputs, dims, start, most) for start in range(0, count or 1, most)]


def join(signature: Signature, calls: list[Arrays]) -> Arrays:
    """The outputs of consecutive calls. Those with rows are joined; of the others, the last are taken."""
    if len(calls) == 1:
        return calls[0]
    return {
        spec.name: np.concatenate([outputs[spec.name] for outputs in calls], axis=1)
        if _has_rows(spec)
        else calls[-1][spec.name]
        for spec in signature.outputs
    }


def _has_rows(spec: TensorSpec) -> bool:
    return len(spec.shape) > 1 and isinstance(spec.shape[1], str)


def _piece(inputs: Arrays, divided: Iterable[str], start: int, most: int) -> Arrays:
    piece = {**inputs, **{name: inputs[name][:, start : start + most] for name in divided}}
    if "position" in inputs:
        piece["position"] = inputs["position"] + start
    return piece


def check_inputs(name: str, signature: Signature, inputs: Mapping[str, np.ndarray], batch: int = 1) -> Sizes:
    """Checks names, dtypes, shapes, bounds and positions of the inputs of component `name`.

    Returns the sizes of the named dimensions. Engines check less than this, and one of them aborts on a
    negative position. Raises UsageError.
    """
    if inputs.keys() != {spec.name for spec in signature.inputs}:
        expected = ", ".join(spec.name for spec in signature.inputs)
        raise UsageError(f"{name}: inputs {', '.join(sorted(inputs))}; expected {expected}")
    sizes: Sizes = {}  # all inputs share them
    for spec in signature.inputs:
        array, what = inputs[spec.name], f"{name}: input {spec.name}"
        if array.dtype != spec.dtype:
            raise UsageError(f"{what} is {array.dtype}, expected {spec.dtype}")
        shape = (batch, *spec.shape[1:]) if batch > 1 else spec.shape
        fits = array.ndim == len(shape)
        for size, dim in zip(array.shape, shape, strict=False):
            low, high = signature.dims[dim] if isinstance(dim, str) else (dim, dim)
            fits = fits and low <= size <= high and sizes.setdefault(dim, size) == size
        if not fits:
            bounds = ", ".join(f"{dim} from {low} to {high}" for dim, (low, high) in signature.dims.items())
            raise UsageError(
                f"{what} has shape {list(array.shape)}, expected {list(shape)} {bounds}".rstrip()
            )
    for position in inputs["position"].tolist() if "position" in inputs else ():
        _check_position(name, signature, position, inputs[signature.inputs[0].name].shape[1])
    return sizes


def check_outputs(name: str, signature: Signature, outputs: Mapping[str, np.ndarray], sizes: Sizes) -> None:
    """Raises IntegrityError if the outputs do not fit the signature: the manifest is wrong."""
    for spec in signature.outputs:
        found, expected = outputs.get(spec.name), [_size(dim, sizes) for dim in spec.shape]
        fits = found is not None and found.dtype == spec.dtype and found.ndim == len(expected)
        # axis 0 is the batch
        if found is None or not fits or list(found.shape[1:]) != expected[1:]:
            what = "is missing" if found is None else f"is {found.dtype} {list(found.shape)}"
            raise IntegrityError(
                f"{name}: output {spec.name} {what}, the manifest says {spec.dtype} {list(spec.shape)}; "
                "export the bundle again"
            )


def _size(dim: Dimension, sizes: Sizes) -> int | None:
    """The size of an axis: a number, a named dimension of the inputs, or a multiple as in `1920*T`."""
    if isinstance(dim, int):
        return dim
    factor, _, name = dim.rpartition("*")
    size = sizes.get(name)
    return None if size is None or not (factor or "1").isdecimal() else int(factor or "1") * size


def _check_position(name: str, signature: Signature, position: int, rows: int) -> None:
    """A call beyond the window of a sliding-window cache takes at most `max_call_rows` rows."""
    state = signature.cache
    if state is None or state.cache is None:
        if position < 0:
            raise UsageError(f"{name}: position {position}, expected 0 or more")
        return
    cache, limit = state.cache, state.rows
    if cache.window is not None:
        one_call = rows * cache.rows_per_position <= cache.max_call_rows
        limit = MAX_ROW_POSITION if one_call else cache.window
    positions = limit // cache.rows_per_position
    if position < 0 or position + rows > positions:
        raise UsageError(
            f"{name}: position {position} with {rows} rows lies outside the cache of {positions}"
        )
