"""Checks of a call's inputs. Engines check less than this, and one of them aborts on a negative position."""

import numpy as np

from bundle.cache import MAX_ROW_POSITION
from bundle.errors import UsageError
from bundle.spec import Signature, TensorSpec
from runtime.engines.states import Arrays


def check_inputs(name: str, signature: Signature, inputs: Arrays, batch: int = 1) -> None:
    """Checks names, dtypes, shapes, bounds and positions of the inputs of component `name`.

    Raises UsageError.
    """
    if inputs.keys() != {spec.name for spec in signature.inputs}:
        expected = ", ".join(spec.name for spec in signature.inputs)
        raise UsageError(f"{name}: inputs {', '.join(sorted(inputs))}; expected {expected}")
    sizes: dict[str, int] = {}
    for spec in signature.inputs:
        _check_array(name, signature, spec, inputs[spec.name], batch, sizes)
    if "position" in inputs:
        rows = inputs[signature.inputs[0].name].shape[1]
        for position in inputs["position"].tolist():
            _check_position(name, signature, position, rows)


def _check_array(
    name: str, signature: Signature, spec: TensorSpec, array: np.ndarray, batch: int, sizes: dict[str, int]
) -> None:
    """`sizes` collects the sizes of named dimensions, which all inputs share."""
    what = f"{name}: input {spec.name}"
    if array.dtype != spec.dtype:
        raise UsageError(f"{what} is {array.dtype}, expected {spec.dtype}")
    shape = (batch, *spec.shape[1:]) if batch > 1 else spec.shape
    fits = array.ndim == len(shape)
    for size, expected in zip(array.shape, shape, strict=False):
        if isinstance(expected, str):
            low, high = signature.dims[expected]
            fits = fits and low <= size <= high and sizes.setdefault(expected, size) == size
        else:
            fits = fits and size == expected
    if not fits:
        bounds = ", ".join(f"{dim} from {low} to {high}" for dim, (low, high) in signature.dims.items())
        raise UsageError(f"{what} has shape {list(array.shape)}, expected {list(shape)} {bounds}".rstrip())


def _check_position(name: str, signature: Signature, position: int, rows: int) -> None:
    """A call beyond the window of a sliding-window cache takes at most `max_call_rows` rows."""
    state = signature.cache
    if state is None or state.cache is None:
        if position < 0:
            raise UsageError(f"{name}: position {position}, expected 0 or more")
        return
    cache, end = state.cache, (position + rows) * state.cache.rows_per_position
    limit = state.rows
    if cache.window is not None:
        one_call = rows * cache.rows_per_position <= cache.max_call_rows
        limit = MAX_ROW_POSITION if one_call else cache.window
    if position < 0 or end > limit:
        positions = limit // cache.rows_per_position
        raise UsageError(
            f"{name}: position {position} with {rows} rows lies outside the cache of {positions}"
        )
