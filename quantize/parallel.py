"""Threads of torch: one for small operations, and one on each core for work on many small tensors."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes with one thread."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def map_items(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The result for each item, in order. As many run at the same time as torch has threads.

    Each operation of torch runs on one thread. Torch's own threads wait for each other at the end of every
    operation. If another program has one of the cores, small operations are then ten times as slow.
    Call it from one thread, and take all results at once: meanwhile new threads have one thread of torch.
    """
    count = torch.get_num_threads()
    if count == 1:
        yield from map(function, items)
        return
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(function, items)
    finally:
        torch.set_num_threads(count)  # else new threads would take over the 1
