"""Calls with more rows (axis 1 of inputs) than a component takes at a time."""

from collections.abc import Iterable

import numpy as np

from voxport.bundle.spec import Signature, TensorSpec

Arrays = dict[str, np.ndarray]


def divide(signature: Signature, inputs: Arrays) -> list[Arrays]:
    """The inputs of consecutive calls, each at the position behind the rows before."""
    dims = {spec.name: spec.shape[1] for spec in signature.inputs if _has_rows(spec)}
    if not dims:
        return [inputs]
    (dim,) = set(dims.values())  # all inputs of a call have as many rows
    most, count = signature.dims[str(dim)][1], max(inputs[name].shape[1] for name in dims)
    return [_piece(inputs, dims, start, most) for start in range(0, count or 1, most)]


def join(signature: Signature, calls: list[Arrays]) -> Arrays:
    """The outputs of consecutive calls. Those with rows are joined; of the others, the last are taken."""
    if len(calls) == 1:
        return calls[0]
    return {
        spec.name: np.concatenate([outputs[spec.name] for outputs in calls], axis=1)
        if _has_rows(spec)
        else calls[-1][spec.name]
        for spec in signature.outputs
    }


def _has_rows(spec: TensorSpec) -> bool:
    return len(spec.shape) > 1 and isinstance(spec.shape[1], str)


def _piece(inputs: Arrays, divided: Iterable[str], start: int, most: int) -> Arrays:
    piece = {**inputs, **{name: inputs[name][:, start : start + most] for name in divided}}
    if "position" in inputs:
        piece["position"] = inputs["position"] + start
    return piece
