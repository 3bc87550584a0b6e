"""Quantised weights of a saved package, read back and compared with those of the modules."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bundle.errors import ExportError
from export.targets.coreml.package import CONTENT, MODEL
from export.targets.coreml.target import CoreMLTarget
from export.targets.coreml.tools import ct, load_program, silent
from export.targets.tracing import example_inputs, target_kernels, zero_states
from model.component import Component
from model.layers.attention import ReferenceAttention
from quantize.modules import PalettizedLinear, QuantizedEmbedding, QuantizedLinear

Compressed = QuantizedLinear | QuantizedEmbedding | PalettizedLinear
Array = npt.NDArray[Any]  # of integers or floats
Weight = Callable[[], tuple[Array, Array]]
# Any in this module: programs and operations of coremltools, which has no types.


def read_quantized_weights(path: Path, function: str) -> list[tuple[Array, Array]]:
    """Integers int8 [N, K] and scales float32 [N, K / block] of every quantised product and table, in the
    order of use.
    """
    return [weight() for weight in stored_weights(read_program(path, function), function)]


def read_program(path: Path, function: str) -> Any:
    """The program of a package, with weights, reduced to one function."""
    with silent():
        spec = ct.utils.load_spec(str(path / MODEL))
        for other in [name for name in spec.mlProgram.functions if name != function]:
            del spec.mlProgram.functions[other]
        return load_program(spec, spec.specificationVersion, str(path / CONTENT / "weights"))


def stored_weights(program: Any, function: str) -> list[Weight]:
    """Readers of the quantised weights of a function, in the order of use.

    The weight of a product is a constant expression. A table is a gather of int8 rows, followed by a gather
    of their scales.
    """
    weights: list[Weight] = []
    table = None
    for op in program.functions[function].operations:
        values = (value for value in op.inputs.values() if not isinstance(value, list | tuple))
        for source in (value.op for value in values if value.op):
            if source.op_type == "constexpr_lut_to_dense":
                weights.append(partial(_palettized, source))
            if source.op_type == "constexpr_blockwise_shift_scale" and source.offset is None:
                weights.append(partial(_blockwise, source))
        if op.op_type == "gather" and table is not None:
            weights.append(partial(_tabular, table, op))
            table = None
        elif op.op_type == "gather" and op.x.val is not None and op.x.val.dtype == np.int8:
            table = op.x.val
    return weights


def _palettized(op: Any) -> tuple[Array, Array]:
    return op.indices.val.astype(np.uint8), op.lut.val[:, 0, :, 0].astype(np.float32)


def _blockwise(op: Any) -> tuple[Array, Array]:
    return op.data.val.astype(np.int8), op.scale.val.astype(np.float32)


def _tabular(integers: Array, scales: Any) -> tuple[Array, Array]:
    return integers, scales.x.val.astype(np.float32)


def check_weights(where: str, found: list[Weight], component: Component, module: nn.Module) -> None:
    """Compares the weights of a function with those of `module`. `where` starts the ExportError."""
    expected = _called_modules(component, module)
    if len(found) != len(expected):
        raise ExportError(
            f"{where}: number of quantised weights: found {len(found)}, expected {len(expected)}"
        )
    for weight, (name, part) in zip(found, expected, strict=True):
        if not all(map(np.array_equal, weight(), _integers_and_scales(part))):
            raise ExportError(f"{where}: the integers or scales of {name} differ from those of the module")


def _integers_and_scales(module: Compressed) -> tuple[torch.Tensor, torch.Tensor]:
    """Or indices and palettes."""
    if isinstance(module, PalettizedLinear):
        return module.get_buffer("indices"), module.get_buffer("palette")
    return module.integers() if isinstance(module, QuantizedLinear) else module.weight, module.scale


def _called_modules(component: Component, module: nn.Module) -> list[tuple[str, Compressed]]:
    """The quantised modules in the order of their calls, found by a run without products."""
    called: list[tuple[str, Compressed]] = []
    parts = {name: part for name, part in module.named_modules() if isinstance(part, Compressed)}
    hooks = [
        part.register_forward_pre_hook(lambda part, _, name=name: called.append((name, part)))
        for name, part in parts.items()
    ]
    inputs = example_inputs(component, {dim: low for dim, (low, _) in component.signature.dims.items()})
    attention = ReferenceAttention(CoreMLTarget.layout)
    try:
        with torch.no_grad(), target_kernels(module, _zeros, attention):
            module(*inputs.values(), *zero_states(component))
    finally:
        for hook in hooks:
            hook.remove()
    return called


def _zeros(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """x [..., K] -> zeros [..., N]."""
    return x.new_zeros(*x.shape[:-1], linear.out_features)
