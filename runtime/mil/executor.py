"""Executes a function of a package operation by operation.

Floats are computed in float32. In `float16` precision, each result that the program declares as float16 is
rounded to it. In `float32` precision it is not rounded, which separates rounding errors from wrong logic.
The internal precision of an operation in Core ML is not part of the program and is not reproduced.
"""

from collections.abc import Hashable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from voxport.runtime.mil.operations import OPERATION_INPUTS, OPERATIONS, check_operations
from voxport.runtime.mil.program import Constant, Function, Operation
from voxport.runtime.mil.types import Array, CallError, MilError, PackageError, TensorType, require
from voxport.runtime.mil.weights import Packed

PRECISIONS = ("float16", "float32")
LARGE_WEIGHT = 2**20  # values
MAX_DECOMPRESSED = 2**29  # values (2 GB); above it, large weights of a function are decompressed at each use
MAX_STATE = 2**30  # values; a cache of the published model has 2 million
# Operations that return values of their operands. The results need no rounding, because their types agree.
ROUNDING_FREE = {
    *("read_state", "reshape", "transpose", "expand_dims", "squeeze", "concat", "stack", "split", "tile"),
    *("slice_by_index", "gather", "reverse", "abs", "relu", "maximum", "minimum", "select"),
}
# rounding to half precision
SMALL = 256  # values; for fewer normal values, the conversion by NumPy takes less time
CHUNK = 2**14  # values; one chunk fits into the cache of the processor
FLOAT16_OVERFLOW = 65520  # the smallest value that rounds to infinity
FLOAT16_NORMAL = 2.0**-14  # the smallest normal float16
FLOAT16_STEPS = 2.0**24  # subnormal float16 values are multiples of 1 / FLOAT16_STEPS
BLOCKWISE = "constexpr_blockwise_shift_scale"
UNDEFINED = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    TypeError,
    ValueError,
)  # errors of NumPy and Python for values that an operation is not defined for
# A value is an array, a string or the name of a state, as the program defines: hence Any.
Values = dict[str, Any]
Arguments = dict[str, tuple[Any, ...]]
States = dict[str, Array]
Float32Array = npt.NDArray[np.float32]


class Executor:
    """Executes one function. Constants are prepared once. The caller owns the states."""

    def __init__(self, function: Function, precision: str = "float16"):
        """Raises CallError for an unknown precision, and the errors of `check_operations`."""
        require(
            precision in PRECISIONS,
            f"precision {precision!r}: expected one of {', '.join(PRECISIONS)}",
            CallError,
        )
        self.function = function
        self._rounds = precision == "float16"
        check_operations(function)
        self._constants: Values = {}
        self._large: dict[str, Operation] = {}  # weights that are decompressed at each use
        size = sum(map(_decompressed_size, function.operations))
        self._operations = self._constant_fold(keep_large=size > MAX_DECOMPRESSED)
        self._last_uses = _last_uses(self._operations, function.outputs)

    def new_states(self) -> States:
        """All states of the function, filled with zeros."""
        states = {}
        for name, type in self.function.states.items():
            if type.fixed is None or prod(type.fixed) > MAX_STATE:
                raise PackageError(f"state {name}: {type} has no fixed shape or more than {MAX_STATE} values")
            states[name] = np.zeros(type.fixed, self._dtype(type))
        return states

    def run(self, inputs: Mapping[str, Array], states: States | None = None) -> dict[str, Array]:
        """Runs the function. Returns outputs by name, in their declared types. Replaces the `states`.

        Raises CallError for inputs or states that do not match the declaration. Raises MilError, with the
        operation, for values that an operation is not defined for.
        """
        states = {} if states is None else states
        self._check_call("input", self.function.inputs, inputs)
        self._check_call("state", self.function.states, states)
        values = dict(self._constants) | {name: _widened(np.asarray(array)) for name, array in inputs.items()}
        with np.errstate(all="ignore"):  # infinities and NaN are valid results
            for operation, last_used in zip(self._operations, self._last_uses, strict=True):
                self._execute(operation, values, states)
                for name in last_used:  # frees memory: each update of a cache is a new array
                    values.pop(name, None)
        return {
            name: np.array(values[name], self._dtype(type)) for name, type in self.function.outputs.items()
        }

    def _dtype(self, type: TensorType) -> type[np.generic]:
        """NumPy type of inputs, outputs and states: the declared type, but float32 for unrounded float16."""
        return np.float32 if type.scalar.name == "fp16" and not self._rounds else type.scalar.dtype

    def _check_call(self, role: str, expected: Mapping[str, TensorType], given: Mapping[str, Array]) -> None:
        where = f"function {self.function.name}: {role}"
        if given.keys() != expected.keys():
            name = min(given.keys() ^ expected.keys())
            raise CallError(f"{where} {name} is {'missing' if name in expected else 'unknown'}")
        for name, type in expected.items():
            array = np.asarray(given[name])
            if array.dtype != self._dtype(type) or not type.fits(array.shape):
                raise CallError(f"{where} {name} is {array.dtype}{list(array.shape)}, expected {type}")

    def _constant_fold(self, keep_large: bool) -> list[Operation]:
        """Evaluates constants and decompresses weights. Returns the remaining operations.

        With `keep_large`, large weights stay compressed.
        """
        remaining = []
        for operation in self.function.operations:
            known = all(
                isinstance(value, Constant) or value in self._constants
                for values in operation.inputs.values()
                for value in values
            )
            is_constant = operation.type == "const" or operation.type.startswith("constexpr_")
            if keep_large and known and _decompressed_size(operation) > LARGE_WEIGHT:
                self._large |= {output.name: operation for output in operation.outputs}
            elif known and is_constant:
                self._prepare(operation)
            else:
                remaining.append(operation)
        return remaining

    def _prepare(self, operation: Operation) -> None:
        """Evaluates a constant operation, or takes the result from the weight cache of the package."""
        cache, names = self.function.weight_cache, [output.name for output in operation.outputs]
        inputs = ((name, *map(self._identity, values)) for name, values in sorted(operation.inputs.items()))
        key = (self._rounds, operation.type, *(str(output.type) for output in operation.outputs), *inputs)
        if key not in cache:
            with np.errstate(all="ignore"):
                self._execute(operation, self._constants, {})
            cache[key] = [self._constants[name] for name in names]
        self._constants |= dict(zip(names, cache[key], strict=True))

    def _identity(self, value: str | Constant) -> Hashable:
        """Cache key of a constant: a string, or the identity of an array, which the package keeps."""
        content = self._constants[value] if isinstance(value, str) else value.value
        return content if isinstance(content, str) else id(content)

    def _execute(self, operation: Operation, values: Values, states: States) -> None:
        arguments = {
            key: tuple(self._value(value, values) for value in inputs)
            for key, inputs in operation.inputs.items()
        }
        try:
            results = self._results(operation, arguments, states)
        except MilError as error:
            if operation.where in str(error):
                raise
            raise type(error)(f"{operation.where}: {error}") from None
        except UNDEFINED as error:
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            raise MilError(f"{operation.where}: not defined for these values: {reason}") from None
        require(
            len(results) == len(operation.outputs),
            f"{operation.where}: has {len(results)} results, declares {len(operation.outputs)}",
            PackageError,
        )
        for output, result in zip(operation.outputs, results, strict=True):
            values[output.name] = self._checked_result(result, output.type, operation, arguments)

    def _value(self, value: str | Constant, values: Values) -> Any:
        if isinstance(value, Constant):
            return value.value.unpack() if isinstance(value.value, Packed) else _widened(value.value)
        if value in self.function.states:
            return value
        if value in self._large:
            decompressed = dict(self._constants)
            self._execute(self._large[value], decompressed, {})
            return decompressed[value]
        return values[value]

    def _results(self, operation: Operation, arguments: Arguments, states: States) -> list[Any]:
        match operation.type:
            case "const":
                return [arguments["val"][0]]
            case "read_state":
                return [_widened(states[self._state(arguments["input"][0])])]
            case "write_state":
                name, data = self._state(arguments["input"][0]), arguments["data"][0]
                type = self.function.states[name]
                require(
                    type.fits(data.shape), f"state {name} is {type}, the value has shape {list(data.shape)}"
                )
                states[name] = np.array(data, self._dtype(type))
                return []
        for key in ("dtype", "output_dtype"):
            if key in arguments and arguments[key][0] != operation.outputs[0].type.scalar.name:
                declared = operation.outputs[0].type
                raise PackageError(f"input {key} is {arguments[key][0]}, the declared result is {declared}")
        result = OPERATIONS[operation.type](**OPERATION_INPUTS[operation.type].convert(arguments))
        return list(result) if isinstance(result, list | tuple) else [result]

    def _state(self, name: Any) -> str:
        if not isinstance(name, str) or name not in self.function.states:
            raise PackageError("has a value where a state is expected")
        return name

    def _checked_result(
        self, result: Any, type: TensorType, operation: Operation, arguments: Arguments
    ) -> Any:
        """A result in its declared type. Raises MilError if its shape or type contradicts the declaration."""
        if type.scalar.name == "string":
            return result
        array = np.asarray(result)
        if not type.fits(array.shape):
            shape = f"has shape {list(array.shape)}"
            raise MilError(f"{operation.where}: result {shape}, the program declares {type}")
        kinds = (type.scalar.is_float, type.scalar.name == "bool")
        if (array.dtype.kind == "f", array.dtype.kind == "b") != kinds:
            raise MilError(f"{operation.where}: result is {array.dtype}, the program declares {type}")
        if type.scalar.is_float:
            rounds = type.scalar.name == "fp16" and self._rounds and operation.type not in ROUNDING_FREE
            return self._rounded(array, operation, arguments) if rounds else array
        converted = array.astype(type.scalar.dtype, copy=False)
        require(
            converted.dtype == array.dtype or np.array_equal(converted, array),
            f"{operation.where}: {array.dtype} result is outside the range of {type}",
        )
        return converted

    def _rounded(self, array: Array, operation: Operation, arguments: Arguments) -> Array:
        if operation.type != BLOCKWISE:
            return round_to_float16(array)
        data = operation.inputs["data"][0]
        is_int4 = isinstance(data, Constant) and data.type.scalar.name == "int4"
        if is_int4 and products_fit_float16(arguments["scale"][0]):
            return array  # rounding would take half of the time of a large weight
        return round_to_float16(array, in_place=True)  # nothing else refers to a decompressed weight


def _last_uses(operations: list[Operation], outputs: Iterable[str]) -> list[list[str]]:
    """For each operation, the names that no later operation uses, without `outputs`."""
    used, result = set(outputs), []
    for operation in reversed(operations):
        names = [name for name in _names(operation) if name not in used]
        used.update(names)
        result.append(names)
    return result[::-1]


def _names(operation: Operation) -> list[str]:
    names = [value for values in operation.inputs.values() for value in values if isinstance(value, str)]
    return list(dict.fromkeys((*names, *(output.name for output in operation.outputs))))


def _decompressed_size(operation: Operation) -> int:
    """Number of values of a compressed weight after decompression; 0 for other operations."""
    if not operation.type.startswith("constexpr_"):
        return 0
    return sum(prod(output.type.fixed) for output in operation.outputs if output.type.fixed is not None)


def _widened(value: Any) -> Any:
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype == np.float16 else value


def round_to_float16(array: Array, in_place: bool = False) -> Float32Array:
    """Rounds float32 values to half precision, ties to even. The result is a float32 array. With
    `in_place`, it may be written to `array`.

    NumPy's conversion takes 14 times as long for values below the smallest normal float16.
    """
    if array.size < SMALL:
        return np.asarray(array, np.float32).astype(np.float16).astype(np.float32)
    values = np.ascontiguousarray(array, np.float32).reshape(-1)
    rounded = values if in_place else np.empty_like(values)
    for start in range(0, values.size, CHUNK):
        chunk = values[start : start + CHUNK]
        _round_chunk(chunk.copy() if in_place else chunk, rounded[start : start + CHUNK])
    return rounded.reshape(array.shape)


def _round_chunk(values: Float32Array, rounded: Float32Array) -> None:
    magnitude = np.abs(values)
    if not magnitude.max() < FLOAT16_OVERFLOW:  # also true for NaN
        rounded[:] = values.astype(np.float16)
        return
    bits, result = values.view(np.uint32), rounded.view(np.uint32)
    np.right_shift(bits, 13, out=result)  # float32 has 13 fraction bits more than float16
    result &= np.uint32(1)
    result += np.uint32(0xFFF)
    result += bits
    result &= np.uint32(0xFFFFE000)
    subnormal = magnitude < FLOAT16_NORMAL
    if subnormal.any():
        np.copyto(rounded, np.rint(values * FLOAT16_STEPS) / np.float32(FLOAT16_STEPS), where=subnormal)


def products_fit_float16(scale: Array) -> bool:
    """True if the products of all scales with 4-bit integers are exact in half precision.

    The integers have at most 3 significant bits and a bfloat16 scale has 8; float16 has 11. Other scales give
    False.
    """
    magnitude = np.abs(scale, dtype=np.float32)
    in_range = (
        magnitude.min(initial=np.inf) >= FLOAT16_NORMAL and 8 * magnitude.max(initial=0) < FLOAT16_OVERFLOW
    )
    is_bfloat16 = not (magnitude.view(np.uint32) & np.uint32(0xFFFF)).any()
    return bool(in_range) and is_bfloat16
