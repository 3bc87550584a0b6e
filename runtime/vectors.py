"""`vectors.json` of a bundle: values of one short run, with which the author of a runner compares it.

Values are in the order of a run. An array is given by every `step`-th of its values, in row-major order.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, gcd, prod
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
from pydantic import Field, JsonValue, ValidationError

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import VECTORS, Bundle, FamilyConstants, Record, first_fault
from voxport.runtime.engines.base import Arrays, Engine

TEXT = "Seven green bottles."  # what models that speak say
Samples = Callable[[int], np.ndarray]  # int16 samples of a recording, at so many Hz
MOST_VALUES = 256  # kept from an array of floats
DIGITS = 6  # significant, in a float
MAY_DIFFER = 0.02  # part of the chosen integers; one processor differs from another in fewer
Constants = TypeVar("Constants", bound=FamilyConstants)


@dataclass(frozen=True)
class VectorWorkload(Generic[Constants]):
    """A short run of a family.

    request(bundle, recording): what is spoken or heard, as JSON.
    run(engine, bundle, constants, request): the values of the run by name, in its order. If the request has
        `chosen`, these are fed back and decoded in place of what the model chose.
    chosen: name of what the model chooses; a run may have none.
    """

    request: Callable[[Bundle, Samples], Json]
    run: Callable[[Engine, Bundle, Constants, Json], Arrays]
    chosen: str = "codes"

    def computed(self, engine: Engine, bundle: Bundle, constants: Constants, request: Json) -> Arrays:
        """`run` for a request of a file. Raises IntegrityError if it is damaged."""
        try:
            return self.run(engine, bundle, constants, request)
        except (LookupError, TypeError, ValueError) as error:
            place = f"{bundle.folder / VECTORS}: request"
            raise IntegrityError(
                f"{place}: {type(error).__name__} {error}; export the bundle again"
            ) from None


class Values(Record):
    """One array. `tolerance` is the largest difference from `values`; 0 for integers.

    Integers near a tie are null, and not compared. `may_differ` of the others, but not the first of a row,
    may differ, because another processor rounds otherwise; 0 but for what the model chose.
    """

    name: str
    shape: tuple[int, ...]
    step: Annotated[int, Field(ge=1)]
    values: tuple[int | float | None, ...]
    tolerance: float
    may_differ: Annotated[int, Field(ge=0)] = 0


class Vectors(Record):
    """All of `vectors.json`."""

    version: Literal[1] = 1
    request: dict[str, JsonValue]
    values: tuple[Values, ...]


@dataclass(frozen=True)
class Difference:
    """How far an array is from the expected one. `text` says it; empty if it is equal."""

    name: str
    text: str


def choices_of(name: str, expected: np.ndarray, found: np.ndarray, is_chosen: bool) -> Values:
    """The stored form of integers, where another engine `found` others."""
    equal = zip(expected.flat, found.flat, strict=True)
    exact = tuple(int(value) if value == other else None for value, other in equal)
    may_differ = ceil(MAY_DIFFER * expected.size) if is_chosen else 0
    return Values(name=name, shape=expected.shape, step=1, values=exact, tolerance=0, may_differ=may_differ)


def values_of(name: str, expected: np.ndarray, found: np.ndarray, least: float, factor: float) -> Values:
    """The stored form of floats, where another engine `found` others.

    The tolerance is `factor` times the difference of the stored values, at least `least` times the largest
    value.
    """
    step = max(1, ceil(expected.size / MOST_VALUES))
    while gcd(step, expected.shape[-1]) > 1:  # else some columns are never among the values
        step += 1
    stored, other = (array.reshape(-1)[::step] for array in (expected, found))
    values = tuple(float(f"{value:.{DIGITS}g}") for value in stored.tolist())
    largest, difference = np.abs(expected).max(initial=0.0), np.abs(other - stored).max(initial=0.0)
    tolerance = float(f"{max(least * largest, factor * difference):.2g}")
    return Values(name=name, shape=expected.shape, step=step, values=values, tolerance=tolerance)


def read_vectors(bundle: Bundle) -> Vectors:
    """Raises UsageError if the bundle has none, IntegrityError if they are damaged."""
    path = bundle.folder / VECTORS
    if not path.is_file():
        raise UsageError(f"{path}: missing; an export with verification writes it")
    try:
        return Vectors.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValueError, ValidationError) as error:
        reason = first_fault(error) if isinstance(error, ValidationError) else error
        raise IntegrityError(f"{path}: {reason}; export the bundle again") from None


def read_found(path: Path) -> dict[str, np.ndarray]:
    """What a runner wrote: a JSON object of arrays by name. Raises UsageError."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        return {name: np.array(values) for name, values in content.items()}  # null of a NaN: an object
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: not a JSON object of arrays by name ({error})") from None


def compare(vectors: Vectors, found: Mapping[str, np.ndarray]) -> Iterator[Difference]:
    """A result for each array, in the order of the run. Arrays that `found` lacks are left out.

    Raises UsageError if it has none of them.
    """
    known = [expected for expected in vectors.values if expected.name in found]
    if not known:
        names = ", ".join(expected.name for expected in vectors.values)
        raise UsageError(f"it has none of the arrays {names}")
    for expected in known:
        yield Difference(expected.name, _difference(expected, found[expected.name]))


def _difference(expected: Values, found: np.ndarray) -> str:
    if found.size != prod(expected.shape):
        return f"has {found.size} values, expected {list(expected.shape)}"
    if found.dtype.kind not in "iuf":
        return "has a value that is no number"
    values = found.reshape(-1)[:: expected.step].astype(np.float64)
    known = np.array([value is not None for value in expected.values], bool)
    wanted = np.array([value or 0 for value in expected.values], np.float64)
    wrong = known & ~(np.abs(values - wanted) <= expected.tolerance)  # a NaN is wrong
    is_first = np.arange(len(wrong)) % expected.shape[-1] == 0  # the first code of each frame
    if wrong.sum() <= expected.may_differ and not (wrong & is_first).any():
        return ""
    first = int(wrong.argmax())
    place = [int(axis) for axis in np.unravel_index(first * expected.step, expected.shape)]
    least = f" within {expected.tolerance:.2g}" if expected.tolerance else ""
    return (
        f"{int(wrong.sum())} of {len(wrong)} values differ, first at {place}: {values[first]:.6g}, expected "
        f"{wanted[first]:.6g}{least}"
    )


def encoded(samples: np.ndarray) -> str:
    """int16 samples as base64 of little-endian bytes."""
    return base64.b64encode(samples.astype("<i2").tobytes()).decode()


def decoded(text: JsonValue) -> np.ndarray:
    """int16 samples"""
    return np.frombuffer(base64.b64decode(str(text)), "<i2")
