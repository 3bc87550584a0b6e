"""`FairQueue`: serves keys round-robin, and the requests of a key first in, first out."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class HasKey(Protocol):
    @property
    def key(self) -> str: ...


Item = TypeVar("Item", bound=HasKey)


class FairQueue(Generic[Item]):
    """Not thread-safe."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Item]] = {}  # in round-robin order

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Item]:
        return (item for queue in self._queues.values() for item in queue)

    @property
    def keys(self) -> set[str]:
        return set(self._queues)

    def count(self, key: str) -> int:
        """How many items of a key wait."""
        return len(self._queues.get(key, ()))

    def put(self, item: Item) -> None:
        self._queues.setdefault(item.key, deque()).append(item)

    @property
    def first_of_keys(self) -> list[Item]:
        """The oldest item of each key, in round-robin order of the keys."""
        return [queue[0] for queue in self._queues.values()]

    def take(self, key: str) -> Item:
        """The oldest item of a key, which moves behind the others."""
        queue = self._queues.pop(key)
        item = queue.popleft()
        if queue:
            self._queues[key] = queue
        return item

    def remove(self, matches: Callable[[Item], bool]) -> list[Item]:
        """Takes out and returns the items that match."""
        removed = [item for item in self if matches(item)]
        for item in removed:
            self._queues[item.key].remove(item)
        self._queues = {key: queue for key, queue in self._queues.items() if queue}
        return removed
