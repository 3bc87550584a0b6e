"""`Engine` opens a bundle's components; `Stream` holds the states of one caller."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from threading import RLock

from bundle.errors import UsageError
from bundle.spec import Signature
from runtime.engines.inputs import check_inputs
from runtime.engines.states import Arrays, put_rows, unique_caches


@dataclass(frozen=True)
class EngineOptions:
    """How an engine runs.

    `threads` None is all cores; the other two apply to Core ML bundles, see `open_coreml`.
    """

    threads: int | None = None
    compute_precision: str | None = None
    compute_units: str | None = None


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

    def batched(self, size: int) -> "Stream":
        """A stream with `size` slots. Its batchable components serve all slots in one call.

        Raises UsageError if a call serves only one slot.
        """
        if size == 1:
            return self.stream()
        raise UsageError(f"{self.identity}: one call serves one stream, not {size}")


class Stream(ABC):
    """The states of one caller and the calls that change them. Two streams of one engine never share states.

    `signatures` are those of the components by name. `batch` is the number of slots: the size of axis 0.
    """

    batch = 1

    def __init__(self, signatures: Mapping[str, Signature], lock: "RLock | None" = None):
        """`lock` is that of the engine, for streams that share it."""
        self.signatures = dict(signatures)
        self.lock = lock or RLock()

    def run(self, component: str, inputs: Arrays) -> Arrays:
        """Calls a component, updates its states and returns its outputs.

        Raises UsageError on inputs that do not fit.
        """
        if component not in self.signatures:
            raise UsageError(f"no component {component!r}; there are {', '.join(self.signatures)}")
        check_inputs(component, self.signatures[component], inputs, self.batch)
        with self.lock:
            return self._run(component, inputs)

    @abstractmethod
    def _run(self, component: str, inputs: Arrays) -> Arrays: ...

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

    @abstractmethod
    def reset(self) -> None:
        """Empties every state."""

    @abstractmethod
    def snapshot(self) -> Arrays:
        """Copies of all states by name."""

    @abstractmethod
    def restore(self, states: Arrays) -> None:
        """Replaces all states by those of a snapshot."""

    def save_rows(self, count: int) -> Arrays:
        """Copies of the first `count` rows of every cache by name; of all rows where a cache has fewer."""
        rows = {}
        with self.lock:
            states = self._current_states()
            for name, state in unique_caches(self.signatures.values()).items():
                axis = state.cache.row_axis if state.cache else 0
                rows[name] = states[name][(slice(None),) * axis + (slice(count),)].copy()
        return rows

    def _current_states(self) -> Arrays:
        """All states by name, to be read before the next call. An engine may return them without a copy.

        A cache may have fewer rows than its signature, where the others are empty.
        """
        return self.snapshot()

    def load_rows(self, rows: Arrays) -> None:
        """Writes the rows of `save_rows` to an empty stream. Raises UsageError on rows of another bundle."""
        states = self.snapshot()
        put_rows(states, unique_caches(self.signatures.values()), rows, self.batch)
        self.restore(states)
