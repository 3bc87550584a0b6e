"""Calls with more rows than a component takes at a time."""

import numpy as np

from bundle.spec import TensorSpec
from runtime.engines.base import Arrays, Stream


def run_rows(stream: Stream, component: str, inputs: Arrays) -> Arrays:
    """As `stream.run`, for inputs with any number of rows (axis 1).

    A component that takes fewer rows is called several times, each time behind the rows before. Outputs with
    rows are joined. Of the other outputs, those of the last call are returned.
    """
    signature = stream.signatures[component]
    divided = [spec.name for spec in signature.inputs if _has_rows(spec)]
    if not divided:
        return stream.run(component, inputs)
    most = max(high for _, high in signature.dims.values())
    calls = [
        stream.run(component, _piece(inputs, divided, start, most))
        for start in range(0, inputs[divided[0]].shape[1] or 1, most)
    ]
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


def _piece(inputs: Arrays, divided: list[str], start: int, most: int) -> Arrays:
    """`most` rows from `start` on, and their position."""
    piece = {**inputs, **{name: inputs[name][:, start : start + most] for name in divided}}
    if "position" in inputs:
        piece["position"] = inputs["position"] + start
    return piece
