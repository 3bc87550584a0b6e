"""Threads of torch: one for small operations, and one on each core for work on many small tensors."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
_outside: ContextVar[int] = ContextVar("threads outside of one_thread")


@contextmanager
def one_thread() -> Iterator[None]:
    """Each operation of torch has one thread, so that the order of sums does not depend on their number.

    `map_items` still runs as many items at the same time as torch had threads.
    """
    count, token = torch.get_num_threads(), _outside.set(_threads())
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
        _outside.reset(token)


def spare_threads() -> int:
    """Threads that `map_items` has within `one_thread`, else 1: there, operations have torch's threads."""
    return _outside.get(1)


def map_items(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """The result for each item, in order. As many run at the same time as torch has threads.

    Each operation of torch runs on one thread. Torch's own threads wait for each other at the end of every
    operation. If another program has one of the cores, small operations are then ten times as slow.
    Call it from one thread, and take all results at once: meanwhile new threads have one thread of torch.
    """
    own, count = torch.get_num_threads(), min(_threads(), len(items))
    if count <= 1:
        with one_thread():
            yield from map(function, items)
        return
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(function, items)
    finally:
        torch.set_num_threads(own)  # else new threads would take over the 1


def _threads() -> int:
    return _outside.get(torch.get_num_threads())
