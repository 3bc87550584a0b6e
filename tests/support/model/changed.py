"""A family, or another object of a class of constants, with other values."""

import copy
from typing import TypeVar

Kind = TypeVar("Kind")


def changed(original: Kind, **values: object) -> Kind:
    found = copy.copy(original)
    vars(found).update(values)
    return found
