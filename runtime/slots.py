"""`Slots`: places of a batch that callers take and free at any step, for speech and for transcription."""

import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from voxport.runtime.engines.base import Stream

Item = TypeVar("Item")
log = logging.getLogger(__name__)


class Slots(Generic[Item]):
    """Items by slot. A new item takes the slot behind the others.

    A freed slot leaves a gap. `compact` fills it, so that a call has a batch of as many slots as have items.
    """

    def __init__(self, count: int, move: Callable[[int, int], object]):
        """`move(source, target)` moves the states of an item to a free slot."""
        self.count, self._move = count, move
        self.items: dict[int, Item] = {}

    def __len__(self) -> int:
        return len(self.items)

    @property
    def has_room(self) -> bool:
        return len(self.items) < self.count

    def take(self, item: Item) -> None:
        """Gives a slot to an item. The others have the first slots."""
        self.items[len(self.items)] = item

    def free(self, item: object) -> int | None:
        """Frees the slot of an item and returns it; None if it has no slot."""
        slot = next((slot for slot, found in self.items.items() if found is item), None)
        if slot is not None:
            del self.items[slot]
        return slot

    def compact(self) -> dict[Item, Exception]:
        """Moves items until they have the first slots.

        Returns the errors of moves. The states of these items are not known, and they must be freed.
        """
        errors: dict[Item, Exception] = {}
        while self.items and (last := max(self.items)) >= len(self.items):
            gap = next(slot for slot in range(last) if slot not in self.items)
            item = self.items[gap] = self.items[last]
            del self.items[last]  # last: another thread may read the items
            try:
                self._move(last, gap)
            except Exception as error:  # belongs to this item, whatever it is
                errors[item] = error
        return errors

    def run(self, call: Callable[[list[int]], object], slots: Iterable[int]) -> dict[int, Exception]:
        """Makes one call for some slots. If it raises, each of them has a call of its own.

        Returns the errors of slots whose own call raises. So a call that raises must be repeatable.
        """
        chosen = list(slots)
        if not chosen:
            return {}
        try:
            call(chosen)
        except Exception as error:  # belongs to one of the items, whatever it is
            if len(chosen) == 1:
                return {chosen[0]: error}
            log.warning("a pass over %d requests failed; each is computed alone: %s", len(chosen), error)
            errors = [self.run(call, [slot]) for slot in chosen]
            return {slot: error for found in errors for slot, error in found.items()}
        return {}


def move_states(
    batch: Stream, source: int, target: int, positions: int, component: str | None = None
) -> Stream:
    """Copies the states of a slot to another one, or those of a component: of each cache the rows of the
    first `positions` positions. Returns the stream of the other slot.
    """
    stream = batch.slot(target)
    stream.load(batch.slot(source).save(component, positions))
    return stream
