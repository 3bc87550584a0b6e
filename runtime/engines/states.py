"""State arrays of a stream: allocation, copies, checks."""

import math
import mmap
from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from bundle.errors import UsageError
from bundle.spec import Signature, StateSpec

Arrays = dict[str, np.ndarray]
PAGE_VALUES = 1024  # float32 values of a memory page


def unique_states(signatures: Iterable[Signature]) -> dict[str, StateSpec]:
    """The states of several components by name; components of one graph share them."""
    return {state.name: state for signature in signatures for state in signature.states}


def unique_caches(signatures: Iterable[Signature]) -> dict[str, StateSpec]:
    return {name: state for name, state in unique_states(signatures).items() if state.cache}


def batched_shape(state: StateSpec, batch: int) -> tuple[int, ...]:
    return (batch, *state.shape[1:])


def empty_states(signatures: Iterable[Signature], batch: int = 1) -> Arrays:
    """Zeros for every state. A page of a cache uses no memory before a row is written to it."""
    states = unique_states(signatures)
    return {name: _lazy_zeros(batched_shape(state, batch), state.dtype) for name, state in states.items()}


def copy_states(states: Arrays) -> Arrays:
    """Copies of all states. Pages of zeros, such as the unused rows of a cache, use no memory."""
    copies = {}
    for name, array in states.items():
        copy = copies[name] = _lazy_zeros(array.shape, array.dtype.name)
        target, source = copy.reshape(-1), np.ascontiguousarray(array).reshape(-1)
        pages = source.size // PAGE_VALUES
        paged = source[: pages * PAGE_VALUES].reshape(pages, PAGE_VALUES)
        destination = target[: pages * PAGE_VALUES].reshape(pages, PAGE_VALUES)
        np.copyto(destination, paged, where=paged.any(axis=1, keepdims=True))
        target[pages * PAGE_VALUES :] = source[pages * PAGE_VALUES :]
    return copies


def _lazy_zeros(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Zeros mapped from the system.

    NumPy may clear heap memory or use huge pages: 0.4 GB for the published caches.
    """
    count = math.prod(shape)
    size = max(1, count * np.dtype(dtype).itemsize)
    flags = {}
    if hasattr(mmap, "MAP_PRIVATE"):  # shared pages would use memory when they are read
        flags["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, size, **flags)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype, count).reshape(shape)


def check_states(signatures: Iterable[Signature], states: Arrays, batch: int = 1) -> None:
    """Checks that a snapshot has the states of these components.

    Raises UsageError that names the first difference.
    """
    specs = unique_states(signatures)
    expected = {name: (batched_shape(state, batch), state.dtype) for name, state in specs.items()}
    found = {name: (array.shape, array.dtype.name) for name, array in states.items()}
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            raise UsageError(
                f"snapshot: state {name} is {found.get(name)}, this bundle has {expected.get(name)}"
            )


def put_rows(states: Arrays, caches: dict[str, StateSpec], rows: Arrays, batch: int = 1) -> None:
    """Writes `rows` to the beginning of the caches in `states`.

    Raises UsageError on rows of another bundle.
    """
    for name in sorted(caches.keys() | rows.keys()):
        state, found = caches.get(name), rows.get(name, np.empty(0))
        shape = list(batched_shape(state, batch)) if state else []
        axis = state.cache.row_axis if state and state.cache else 0
        if not shape or found.ndim != len(shape) or _without(found.shape, axis) != _without(shape, axis):
            raise UsageError(f"rows: cache {name} has shape {list(found.shape)}, this bundle has {shape}")
        states[name][(slice(None),) * axis + (slice(found.shape[axis]),)] = found


def _without(shape: Iterable[int], axis: int) -> list[int]:
    return [size for index, size in enumerate(shape) if index != axis]
