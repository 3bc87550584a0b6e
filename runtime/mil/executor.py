"""Executes a function of a package: every operation in order, each value as its type says.

Floats are computed in float32. In `float16` precision every result that the program declares half is rounded to half, as the
program says; in `float32` it is not, which tells rounding from logic. What Core ML's engines keep wider or narrower inside an
operation is theirs and not in the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from runtime.mil.check import check_operations
from runtime.mil.errors import CallError, MilError, PackageError
from runtime.mil.ops import OPERATIONS, SIGNATURES
from runtime.mil.program import Block, Constant, Function, Name, Operation
from runtime.mil.types import TensorType
from runtime.mil.weights import Packed

PRECISIONS = ("float16", "float32")
SMALL = 1024  # values
LARGE, MOST_HELD = (
    2**20,
    2**29,
)  # of a weight, and of all weights of a function that are held decompressed: 2 GB
PIECE = 2**14  # values
HALF_OVERFLOWS, SMALLEST_HALF = 65520, 2.0**-14  # what rounds to infinity; the smallest normal
SUBNORMALS = 2.0**24  # below which, so many to 1
# Give values that they take, which are halves already where the result is: types agree.
MOVES = {
    "read_state",
    "reshape",
    "transpose",
    "expand_dims",
    "squeeze",
    "concat",
    "stack",
    "split",
    "slice_by_index",
    "slice_by_size",
    "gather",
}
MOVES |= {
    "slice_update",
    "gather_along_axis",
    "gather_nd",
    "tile",
    "reverse",
    "identity",
    "abs",
    "relu",
    "maximum",
    "minimum",
    "select",
}
BLOCKWISE = "constexpr_blockwise_shift_scale"  # gives a large array that nobody else has
MOST_ITERATIONS = 100_000  # of all loops of one call: a damaged condition must end
LARGEST_STATE = 2**30  # values; a cache of the published model has 2 million
Values = dict[str, Any]


class Executor:
    """One function. Constants are prepared once; states belong to the caller, who may have many."""

    def __init__(self, function: Function, precision: str = "float16"):
        """Raises UnsupportedError that names an operation or attribute that is not known, before anything runs."""
        if precision not in PRECISIONS:
            raise CallError(f"precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
        self.function = function
        self._rounds = precision == "float16"
        check_operations(function)
        self._constants: Values = {}
        self._large: dict[
            str, Operation
        ] = {}  # weights that are decompressed whenever they are used, and let go
        self._body = self._fold(function.body, _weights(function.body) > MOST_HELD)
        self._done = _last_uses(self._body)

    def new_states(self) -> dict[str, np.ndarray]:
        """Zeros for every state of the function."""
        states = {}
        for name, kind in self.function.states.items():
            if kind.fixed is None or prod(kind.fixed) > LARGEST_STATE:
                raise PackageError(f"state {name}: {kind} has no fixed shape, or an absurd one")
            states[name] = np.zeros(kind.fixed, self._held(kind))
        return states

    def run(
        self, inputs: Mapping[str, np.ndarray], states: dict[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Outputs by name, in the types that the program declares; `states` are replaced in place.

        Raises CallError on inputs or states that do not fit, MilError that names the operation on values that it is not defined for.
        """
        states = {} if states is None else states
        self._check_call("input", self.function.inputs, inputs)
        self._check_call("state", self.function.states, states)
        values = dict(self._constants) | {name: _widened(np.asarray(array)) for name, array in inputs.items()}
        self._iterations = MOST_ITERATIONS
        with np.errstate(all="ignore"):  # infinities and what is no number are results like others
            for operation, done in zip(self._body.operations, self._done, strict=True):
                self._operation(operation, values, states)
                for (
                    name
                ) in done:  # else a call would hold every cache of a model as often as it is computed with
                    values.pop(name, None)
        return {
            name: np.array(values[name], self._held(kind)) for name, kind in self.function.outputs.items()
        }

    def _held(self, kind: TensorType) -> Any:
        """The type of arrays that pass between caller and executor: what the program declares, single for half where nothing is rounded."""
        return np.float32 if kind.scalar.name == "fp16" and not self._rounds else kind.scalar.held

    def _check_call(
        self, what: str, expected: Mapping[str, TensorType], given: Mapping[str, np.ndarray]
    ) -> None:
        if given.keys() != expected.keys():
            odd = min(given.keys() ^ expected.keys())
            raise CallError(
                f"function {self.function.name}: {what} {odd} is {'missing' if odd in expected else 'not one of it'}"
            )
        for name, kind in expected.items():
            array, sizes = np.asarray(given[name]), self.function.sizes.get(name)
            if (
                array.dtype != self._held(kind)
                or not kind.fits(array.shape)
                or (sizes and not sizes.fits(array.shape))
            ):
                wanted = f"{kind.scalar.name}{sizes}" if sizes else kind
                raise CallError(
                    f"function {self.function.name}: {what} {name} is {array.dtype}{list(array.shape)}, expected {wanted}"
                )

    def _fold(self, block: Block, only_small: bool) -> Block:
        """Runs what depends on constants alone, once: weights are decompressed here, or `only_small` ones."""
        kept = []
        for operation in block.operations:
            known = all(
                isinstance(value, Constant) or value.name in self._constants
                for values in operation.inputs.values()
                for value in values
            )
            if only_small and known and _decompressed(operation) > LARGE:
                self._large |= {named.name: operation for named in operation.outputs}
            elif (
                known
                and not operation.blocks
                and (operation.type == "const" or operation.type.startswith("constexpr_"))
            ):
                self._prepare(operation)
            else:
                kept.append(operation)
        return Block(block.inputs, tuple(kept), block.outputs)

    def _prepare(self, operation: Operation) -> None:
        """Once for all functions of the package that hold the same weight."""
        shared, names = self.function.shared, [named.name for named in operation.outputs]
        inputs = ((name, *map(self._identity, values)) for name, values in sorted(operation.inputs.items()))
        key = (self._rounds, operation.type, *(str(named.type) for named in operation.outputs), *inputs)
        if key not in shared:
            with np.errstate(all="ignore"):
                self._operation(operation, self._constants, {})
            shared[key] = [self._constants[name] for name in names]
        self._constants |= dict(zip(names, shared[key], strict=True))

    def _identity(self, value: Name | Constant) -> Any:
        """Large arrays are objects that the package keeps; small ones are told by their content."""
        held = self._constants[value.name] if isinstance(value, Name) else value.value
        if isinstance(held, Packed):
            return id(held)
        if not isinstance(held, np.ndarray):
            return str(held)
        return id(held) if held.size > SMALL else (held.dtype.str, held.shape, held.tobytes())

    def _block(self, block: Block, values: Values, states: dict[str, np.ndarray]) -> list[Any]:
        for operation in block.operations:
            self._operation(operation, values, states)
        return [values[name] for name in block.outputs]

    def _operation(self, operation: Operation, values: Values, states: dict[str, np.ndarray]) -> None:
        given = {
            key: tuple(self._value(value, values) for value in listed)
            for key, listed in operation.inputs.items()
        }
        try:
            results = self._results(operation, given, values, states)
        except MilError as error:
            raise (
                type(error)(f"{operation.where}: {error}") if operation.where not in str(error) else error
            ) from None
        except (
            ArithmeticError,
            AttributeError,
            IndexError,
            KeyError,
            MemoryError,
            TypeError,
            ValueError,
        ) as error:
            raise MilError(
                f"{operation.where}: not defined for these values: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ) from None
        if len(results) != len(operation.outputs):
            raise PackageError(
                f"{operation.where}: declares {len(operation.outputs)} outputs, gives {len(results)}"
            )
        for named, result in zip(operation.outputs, results, strict=True):
            values[named.name] = self._typed(result, named.type, operation, given)

    def _value(self, value: Name | Constant, values: Values) -> Any:
        if isinstance(value, Constant):
            return value.value.unpack() if isinstance(value.value, Packed) else _widened(value.value)
        if value.name in self.function.states:
            return value.name
        if value.name in self._large:
            found = dict(self._constants)
            self._operation(self._large[value.name], found, {})
            return found[value.name]
        return values[value.name]

    def _results(
        self, operation: Operation, given: dict[str, tuple], values: Values, states: dict[str, np.ndarray]
    ) -> list[Any]:
        match operation.type:
            case "const":
                return [given["val"][0]]
            case "read_state":
                return [_widened(states[self._state(given["input"][0])])]
            case "write_state":
                name = self._state(given["input"][0])
                kind, (data,) = self.function.states[name], given["data"]
                if not kind.fits(data.shape):
                    raise MilError(f"state {name} is {kind}, the value has shape {list(data.shape)}")
                states[name] = np.array(data, self._held(kind))
                return []
            case "cond":
                return self._block(operation.blocks[0 if bool(given["pred"][0]) else 1], values, states)
            case "while_loop":
                return self._loop(operation, list(given["loop_vars"]), values, states)
        for key in ("dtype", "output_dtype"):
            if key in given and given[key][0] != operation.outputs[0].type.scalar.name:
                raise PackageError(f"its {key} is {given[key][0]}, it declares {operation.outputs[0].type}")
        result = OPERATIONS[operation.type](**SIGNATURES[operation.type].convert(given))
        return list(result) if isinstance(result, list | tuple) else [result]

    def _state(self, name: Any) -> str:
        if not isinstance(name, str) or name not in self.function.states:
            raise PackageError("takes a value where a state is expected")
        return name

    def _loop(
        self, operation: Operation, carried: list[Any], values: Values, states: dict[str, np.ndarray]
    ) -> list[Any]:
        condition, body = operation.blocks
        while self._iterations > 0:
            self._iterations -= 1
            inner = values | dict(zip((named.name for named in condition.inputs), carried, strict=True))
            if not bool(self._block(condition, inner, states)[0]):
                return carried
            inner = values | dict(zip((named.name for named in body.inputs), carried, strict=True))
            carried = self._block(body, inner, states)
        raise MilError(f"did not end after {MOST_ITERATIONS} iterations of all loops")

    def _typed(self, result: Any, kind: TensorType, operation: Operation, given: dict[str, tuple]) -> Any:
        """A result in the type that the program declares. A shape that differs means that one of the two is wrong."""
        if kind.scalar.name == "string":
            return result
        array = np.asarray(result)
        if not kind.fits(array.shape):
            raise MilError(f"{operation.where}: gives shape {list(array.shape)}, the program declares {kind}")
        if kind.scalar.is_float:
            if array.dtype.kind != "f":
                raise MilError(f"{operation.where}: gives {array.dtype}, the program declares {kind}")
            rounds = kind.scalar.name == "fp16" and self._rounds and operation.type not in MOVES
            if operation.type == BLOCKWISE:
                return (
                    round_to_half(array, in_place=True)
                    if rounds and not _gives_halves(operation, given)
                    else array
                )
            return round_to_half(array) if rounds else array
        if array.dtype.kind == "f" or (kind.scalar.name == "bool") != (array.dtype.kind == "b"):
            raise MilError(f"{operation.where}: gives {array.dtype}, the program declares {kind}")
        found = array.astype(kind.scalar.held, copy=False)
        if found.dtype != array.dtype and not np.array_equal(found, array):
            raise MilError(f"{operation.where}: gives {array.dtype} beyond {kind}")
        return found


def _gives_halves(operation: Operation, given: dict[str, tuple]) -> bool:
    """Whether a decompressed weight needs no rounding, which takes half of a large one's time: an integer of 4 bits has 3 significant
    ones, a scale that bfloat16 holds has 8, a half has 11."""
    (data,), scale = operation.inputs["data"], np.abs(given["scale"][0], dtype=np.float32)
    if "offset" in given or not isinstance(data, Constant) or data.kind.scalar.name != "int4":
        return False
    in_range = scale.min(initial=np.inf) >= SMALLEST_HALF and 8 * scale.max(initial=0) < HALF_OVERFLOWS
    return bool(in_range) and not (scale.view(np.uint32) & np.uint32(0xFFFF)).any()


def _last_uses(block: Block) -> list[list[str]]:
    """For each operation of a block the names that nothing behind it takes, the block's outputs left out."""
    seen, found = set(block.outputs), []
    for operation in reversed(block.operations):
        done = [name for name in _names(operation) if name not in seen]
        seen.update(done)
        found.append(done)
    return found[::-1]


def _names(operation: Operation) -> list[str]:
    """Of what an operation and the blocks in it take and give."""
    taken = [
        value.name for values in operation.inputs.values() for value in values if isinstance(value, Name)
    ]
    inner = [
        name
        for block in operation.blocks
        for name in (*block.outputs, *(name for part in block.operations for name in _names(part)))
    ]
    return list(dict.fromkeys((*taken, *inner, *(named.name for named in operation.outputs))))


def _decompressed(operation: Operation) -> int:
    """Values of a compressed weight, of all its outputs."""
    shapes = (
        [named.type.fixed for named in operation.outputs] if operation.type.startswith("constexpr_") else []
    )
    return sum(prod(shape) for shape in shapes if shape is not None)


def _weights(block: Block) -> int:
    return sum(map(_decompressed, block.operations))


def _widened(value: Any) -> Any:
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype == np.float16 else value


def round_to_half(array: np.ndarray, in_place: bool = False) -> np.ndarray:
    """float32 values rounded to half, half to even.

    NumPy's own conversion takes 14 times as long for what is smaller than a normal half. Piece by piece, because a piece stays
    in the processor's cache.
    """
    values = np.ascontiguousarray(array, np.float32).reshape(-1)
    rounded = values if in_place else np.empty_like(values)
    for start in range(0, values.size, PIECE):
        piece = values[start : start + PIECE]
        _round_piece(piece.copy() if in_place else piece, rounded[start : start + PIECE])
    return rounded.reshape(array.shape)


def _round_piece(values: np.ndarray, rounded: np.ndarray) -> None:
    size = np.abs(values)
    if not size.max() < HALF_OVERFLOWS:  # or there is what is no number
        rounded[:] = values.astype(np.float16)
        return
    bits, found = values.view(np.uint32), rounded.view(np.uint32)
    np.right_shift(bits, 13, out=found)  # a half lacks the lowest 13 bits
    found &= np.uint32(1)
    found += np.uint32(0xFFF)
    found += bits
    found &= np.uint32(0xFFFFE000)
    small = size < SMALLEST_HALF
    if small.any():
        np.copyto(rounded, np.rint(values * SUBNORMALS) / np.float32(SUBNORMALS), where=small)
