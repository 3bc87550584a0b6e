"""Requests of several keys take turns."""

from collections import namedtuple

import pytest

from voxport.runtime.serve.fair_queue import FairQueue

Item = namedtuple("Item", "key number")


def test_keys_take_turns_and_each_is_served_in_order() -> None:
    queue: FairQueue[Item] = FairQueue()
    for number in range(3):
        queue.put(Item("many", number))
    queue.put(Item("few", 0))
    assert len(queue) == 4
    taken = [queue.take() for _ in range(4)]
    assert taken == [Item("many", 0), Item("few", 0), Item("many", 1), Item("many", 2)]
    with pytest.raises(IndexError):
        queue.take()


def test_a_key_that_comes_back_is_behind_the_others() -> None:
    queue: FairQueue[Item] = FairQueue()
    for key in "ab":
        queue.put(Item(key, 0))
    assert queue.take().key == "a"
    queue.put(Item("a", 1))
    assert [queue.take().key for _ in range(2)] == ["b", "a"]


def test_items_are_removed_from_the_middle() -> None:
    queue: FairQueue[Item] = FairQueue()
    for key, number in (("a", 0), ("a", 1), ("b", 0)):
        queue.put(Item(key, number))
    assert queue.remove(lambda item: item.number == 0) == [Item("a", 0), Item("b", 0)]
    assert list(queue) == [Item("a", 1)]


def test_items_are_counted_by_key() -> None:
    queue = FairQueue[Item]()
    for item in (Item("a", 1), Item("a", 2), Item("b", 1)):
        queue.put(item)
    queue.take()
    assert (queue.keys, queue.count("a"), queue.count("b"), queue.count("c")) == ({"a", "b"}, 1, 1, 0)
