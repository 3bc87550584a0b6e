"""Checks of the inputs and outputs of a call against the signature of its component."""

from collections.abc import Mapping

import numpy as np

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.spec import MAX_ROW_POSITION, Dimension, Signature

Sizes = dict[Dimension, int]


def check_inputs(name: str, signature: Signature, inputs: Mapping[str, np.ndarray], batch: int = 1) -> Sizes:
    """Checks names, dtypes, shapes, bounds and positions of the inputs of component `name`.

    Returns the sizes of the named dimensions. Engines check less than this, and one of them aborts on a
    negative position. Raises UsageError.
    """
    if inputs.keys() != {spec.name for spec in signature.inputs}:
        expected = ", ".join(spec.name for spec in signature.inputs)
        raise UsageError(f"{name}: inputs {', '.join(sorted(inputs))}; expected {expected}")
    sizes: Sizes = {}  # all inputs share them
    for spec in signature.inputs:
        array, what = inputs[spec.name], f"{name}: input {spec.name}"
        if array.dtype != spec.dtype:
            raise UsageError(f"{what} is {array.dtype}, expected {spec.dtype}")
        shape = (batch, *spec.shape[1:]) if batch > 1 else spec.shape
        fits = array.ndim == len(shape)
        for size, dim in zip(array.shape, shape, strict=False):
            low, high = signature.dims[dim] if isinstance(dim, str) else (dim, dim)
            fits = fits and low <= size <= high and sizes.setdefault(dim, size) == size
        if not fits:
            bounds = ", ".join(f"{dim} from {low} to {high}" for dim, (low, high) in signature.dims.items())
            raise UsageError(
                f"{what} has shape {list(array.shape)}, expected {list(shape)} {bounds}".rstrip()
            )
    for position in inputs["position"].tolist() if "position" in inputs else ():
        _check_position(name, signature, position, inputs[signature.inputs[0].name].shape[1])
    return sizes


def check_outputs(name: str, signature: Signature, outputs: Mapping[str, np.ndarray], sizes: Sizes) -> None:
    """Raises IntegrityError if the outputs do not fit the signature: the manifest is wrong."""
    for spec in signature.outputs:
        found, expected = outputs.get(spec.name), [_size(dim, sizes) for dim in spec.shape]
        fits = found is not None and found.dtype == spec.dtype and found.ndim == len(expected)
        # axis 0 is the batch
        if found is None or not fits or list(found.shape[1:]) != expected[1:]:
            what = "is missing" if found is None else f"is {found.dtype} {list(found.shape)}"
            raise IntegrityError(
                f"{name}: output {spec.name} {what}, the manifest says {spec.dtype} {list(spec.shape)}; "
                "export the bundle again"
            )


def _size(dim: Dimension, sizes: Sizes) -> int | None:
    """The size of an axis: a number, a named dimension of the inputs, or a multiple as in `1920*T`."""
    if isinstance(dim, int):
        return dim
    factor, _, name = dim.rpartition("*")
    size = sizes.get(name)
    return None if size is None or not (factor or "1").isdecimal() else int(factor or "1") * size


def _check_position(name: str, signature: Signature, position: int, rows: int) -> None:
    """A call beyond the window of a sliding-window cache takes at most `max_call_rows` rows."""
    state = signature.cache
    if state is None or state.cache is None:
        if position < 0:
            raise UsageError(f"{name}: position {position}, expected 0 or more")
        return
    cache, limit = state.cache, state.rows
    if cache.window is not None:
        one_call = rows * cache.rows_per_position <= cache.max_call_rows
        limit = MAX_ROW_POSITION if one_call else cache.window
    positions = limit // cache.rows_per_position
    if position < 0 or position + rows > positions:
        raise UsageError(
            f"{name}: position {position} with {rows} rows lies outside the cache of {positions}"
        )
