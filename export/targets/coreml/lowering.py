"""Lowering to Core ML: constant weights of 4 and 8 bits, half-precision states, one package per graph.

What a package is on disk stands in `export.targets.coreml.package`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from bundle.errors import ExportError, first_line
from bundle.manifest import Precision
from bundle.spec import Kind, TensorSpec
from export.memory import free_memory
from export.targets.base import EntryPoint, Graph, Lowering, Stateful, dynamic_shapes, quiet_logs
from export.targets.coreml.package import OPSET, bounds_of, check_package, merge, normalise, quiet
from model.component import Component
from model.layers.attention import AttentionKernel, attention_kernel, ring_positions, window_mask
from quantize.linear import QuantizedLinear, linear_kernel
from quantize.palettes import PalettizedLinear
from quantize.scales import SMALLEST_SCALE

with quiet_logs(
    "coremltools"
):  # it tells of the framework that only macOS has, and of versions that it has not seen
    import coremltools as ct

PALETTIZATION = 2  # coremltools' number for this kind of compression
RANGES = {
    4: (-8, 7),
    8: (-128, 127),
}  # the only two that the converter takes; the integers of a scheme lie inside
MASKED = -1e4  # finite: a half-precision softmax stays defined where a whole row is masked
DTYPES = {"float32": np.float32, "int64": np.int32}  # Core ML has no 64-bit integers
HALF_MAX = float(np.finfo(np.float16).max)
NORM_PEAK = 8.0  # rows are brought to this magnitude before they are squared: neither squares nor epsilons leave half precision
EXACT = (
    Kind.LOGITS,
    Kind.LATENT,
)  # outputs that are rounded to codes: single precision from the last product on, if its weights are not compressed
# Those of coremltools' passes that change a program, in its order: each is followed by a validation of the whole, and the others take more
# than half of a conversion's time. Packages made with all were the same bytes: every graph of both models, none, w8, w4, 8da4w and lut4
# in half precision. A test repeats it for two graphs. Left out although they would change something:
# `divide_to_multiply`, which multiplies by a rounded 1 / x where a division by x was exact.
PASSES = (
    "cast_optimization",
    "noop_elimination",
    "const_elimination",
    "const_deduplication",
    "remove_symbolic_reshape",
    "reduce_transposes",
    "merge_consecutive_reshapes",
    "merge_consecutive_transposes",
    "fuse_transpose_matmul",
    "reduce_transposes",
    "remove_redundant_ops",
    "dedup_op_and_var_names",
    "add_fp16_cast",
    "add_int16_cast",
    "guard_negative_gather_indices",
    "const_elimination",
    "dead_code_elimination",
    "cast_optimization",
    "dead_code_elimination",
    "add_int16_cast",
    "canonicalize_inplace_pattern",
    "prefer_state_in_downstream",
    "dead_code_elimination",
    "reduce_transposes",
    "remove_redundant_ops",
    "topological_reorder",
)
STATE_PASSES = {"canonicalize_inplace_pattern", "prefer_state_in_downstream"}
PLAIN = {
    "add",
    "sub",
    "mul",
    "real_div",
    "split",
    "slice_by_index",
    "reshape",
    "expand_dims",
    "squeeze",
    "concat",
    "stack",
    "cast",
    "identity",
}


def lower_linear(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """x [..., K] -> [..., N]: dequantised weights, and activations as the scheme asks. For eager mode and for lowering."""
    if linear.scheme.activations == "int8":
        x = _int8_rows(x)
    if not torch.compiler.is_exporting():
        return linear.multiply(x)  # the same numbers, of some rows at a time
    low, high = RANGES[linear.scheme.bits]
    weight = torch.ops.torchao.dequantize_affine(
        linear.constant, [1, linear.block], linear.scale, None, torch.int8, low, high
    )
    return F.linear(x, weight, linear.bias)


def _int8_rows(x: torch.Tensor) -> torch.Tensor:
    """`int8_per_token`'s activations in plain operators; the scale is kept where half precision is normal.

    Divided by the scale, not multiplied by `1 / scale`: the converter's reciprocal adds 1e-4 to what it inverts. The zero point, -128
    less `least`, cancels out of all but the upper bound, since nothing lies below `low`.
    """
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=SMALLEST_SCALE)
    least = torch.round(low / scale)
    return torch.minimum(torch.round(x / scale), least + 255) * scale


def _rms_norm(x: torch.Tensor, shape: list[int], weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The converter's own spelling divides by the largest magnitude and then adds an unscaled epsilon, and 0 / 0 on a zero row.

    That `gain` inverts a little more than its divisor (1e-4) cancels out.
    """
    gain = NORM_PEAK / x.abs().amax(-1, keepdim=True).clamp(min=1)
    scaled = x * gain
    return scaled * torch.rsqrt(scaled.square().mean(-1, keepdim=True) + (gain * eps**0.5).square()) * weight


def _where_scalars(condition: torch.Tensor, chosen: float, other: float) -> torch.Tensor:
    """The converter takes the shape of the scalars for the result's."""
    return condition.to(torch.float32) * (chosen - other) + other


def _scaled(x: torch.Tensor, factor: Any) -> Any:
    """A factor that half precision cannot hold (1 / sqrt(128), sqrt(epsilon)) becomes the sum of two that it can."""
    if not isinstance(factor, float) or not x.is_floating_point():
        return NotImplemented
    near = float(np.float16(factor)) if abs(factor) < HALF_MAX else factor
    rest = float(np.float16(factor - near))
    return x * near + x * rest if rest else NotImplemented


RESPELLED = {
    torch.ops.aten.rms_norm.default: _rms_norm,
    torch.ops.aten.where.Scalar: _where_scalars,
    torch.ops.aten.mul.Tensor: _scaled,
}


class OneHotAttention(AttentionKernel):
    """Caches [1, H_kv, L, D], each rewritten whole by a one-hot product.

    Query heads stay apart from their groups (rank 5), because merging them beside a dynamic S puts guards on strides.
    """

    layout = "BHSD"

    def cached(self, q, k, v, rotation, k_cache, v_cache, position):
        at = (position + torch.arange(q.shape[1]))[:, None]  # [S, 1]
        slots = torch.arange(k_cache.shape[2])
        return self.sliding_window(q, k, v, rotation, k_cache, v_cache, (slots == at, slots > at))

    def cache_update(self, position, rows, cache, window):
        """In a ring, bool [S, L]: which row goes where, and what a query does not see."""
        length = cache.shape[2]
        at = (position + torch.arange(rows))[:, None] % length
        hidden = window_mask(ring_positions(length, position + rows), position, rows, window).logical_not()
        return torch.arange(length) == at, hidden

    def sliding_window(self, q, k, v, rotation, k_cache, v_cache, update):
        written, hidden = update
        q, k = rotation.both(q, k)
        rows, heads, head_dim = q.shape[1:]
        kv_heads = k_cache.shape[1]
        chosen = written.to(q.dtype)
        kept = 1 - chosen.sum(0)[:, None]  # [L, 1]
        spread = chosen.transpose(0, 1)[None, None]  # [1, 1, L, S]
        k_cache, v_cache = (
            cache * kept + spread @ new.transpose(1, 2) for cache, new in ((k_cache, k), (v_cache, v))
        )
        grouped = (q * head_dim**-0.5).transpose(1, 2).reshape(1, kv_heads, heads // kv_heads, rows, head_dim)
        scores = (
            grouped @ k_cache[:, :, None].transpose(3, 4) + hidden.to(q.dtype) * MASKED
        )  # [1, H_kv, H / H_kv, S, L]
        out = scores.softmax(-1) @ v_cache[:, :, None]
        return out.permute(0, 3, 1, 2, 4).reshape(1, rows, heads, head_dim), k_cache, v_cache


class CoreMLLowering(Lowering):
    """One `.mlpackage` per graph with a function per component; functions share weights and name the same states."""

    target = "coreml"
    layout = OneHotAttention.layout
    linear_kernel = staticmethod(lower_linear)
    runners = (
        ("Core ML", "reference executor") if sys.platform == "darwin" else ("reference executor", "Core ML")
    )
    precisions = (None if sys.platform == "darwin" else "float16", "float32")
    integer_kernels = False
    is_slow = sys.platform != "darwin"
    packages = ("torch", "torchao", "coremltools")

    def __init__(self, compute_precision: Precision = "float16"):
        """float32 is for comparison, and for the CPU and GPU alone: the Neural Engine computes in half precision only."""
        self.compute_precision = compute_precision

    def entry_point(self, component: Component) -> EntryPoint:
        return EntryPoint(f"{component.graph}.mlpackage", component.name)

    def lower(self, graph: Graph, folder: Path) -> None:
        path = folder / f"{graph.name}.mlpackage"
        try:
            module = graph.module
            with (
                quiet(),
                linear_kernel(module, lower_linear),
                attention_kernel(module, OneHotAttention()),
            ):
                _write_package(graph, path, self.compute_precision)
        except Exception as error:
            raise ExportError(
                f"{graph.name}: Core ML export failed: {type(error).__name__}: {first_line(error)}"
            ) from error

    def computes_in_half(self, precision: str | None) -> bool:
        return precision != "float32"

    def check(self, graph: Graph, folder: Path) -> str:
        """Functions, states, integers and scales of a saved graph, read back. Raises ExportError."""
        check_package(folder / f"{graph.name}.mlpackage", graph, self.compute_precision)
        return "functions, states, and integers and scales of quantised weights are right"


def _write_package(graph: Graph, path: Path, compute_precision: str) -> None:
    _tell_palettes(graph.module)
    parts: dict[str, Path] = {}
    with TemporaryDirectory(dir=path.parent, prefix=".coreml") as temporary:
        converted: dict[str, Path] = {}
        for component in graph.components:
            bounds = str((component.signature.inputs, component.signature.dims))
            if bounds not in converted:  # components of the same bounds are one program under two names
                converted[bounds] = Path(temporary, f"{component.name}.mlpackage")
                _convert(replace(graph, components=(component,)), compute_precision, converted[bounds])
                free_memory()
            parts[component.name] = converted[bounds]
        merge(parts, graph.widest.name, path)
    normalise(path)


def _tell_palettes(module: nn.Module) -> None:
    """In the buffers from which the converter learns how a weight is compressed."""
    for part in module.modules():
        if isinstance(part, PalettizedLinear):
            part.register_buffer("_COREML_/weight/compression_type", torch.tensor([PALETTIZATION]))
            part.register_buffer(
                "_COREML_/weight/lut", part.get_buffer("palette")[:, None, :, None]
            )  # [N / channels, 1, values, 1]


def _convert(graph: Graph, compute_precision: str, path: Path) -> None:
    """Converts a graph of one component."""
    component, trace_inputs = graph.widest, tuple(graph.trace_inputs().values())
    dynamic = (tuple(shapes or None for shapes in dynamic_shapes(component)),)
    with torch.no_grad():
        # strict: no; the inputs are *args, which strict tracing renames
        program = torch.export.export(
            Stateful(component, graph.module), trace_inputs, dynamic_shapes=dynamic, strict=False
        )
    exact = [index for index, spec in enumerate(component.signature.outputs) if spec.kind in EXACT]
    mixed = ct.transform.FP16ComputePrecision(lambda op: not _ends_exactly(op, exact))
    ct.convert(
        program.run_decompositions(RESPELLED),
        convert_to="mlprogram",
        inputs=[
            ct.TensorType(spec.name, _shape(spec, component), DTYPES[spec.dtype])
            for spec in component.signature.inputs
        ],
        outputs=[ct.TensorType(spec.name, dtype=DTYPES[spec.dtype]) for spec in component.signature.outputs],
        minimum_deployment_target=OPSET,
        compute_precision=mixed if compute_precision == "float16" else ct.precision.FLOAT32,
        pass_pipeline=_passes(component),
        package_dir=str(path),
        skip_model_load=True,
    )


def _ends_exactly(op: Any, exact: list[int]) -> bool:
    """Whether an operation stays in single precision: it is the last product before one of the outputs `exact`, or lies behind it. Not a
    product of a compressed weight: it is held in half precision, and every call would widen all of it."""
    return (op.op_type in PLAIN or (op.op_type == "linear" and not _is_compressed(op.weight))) and any(
        var in [op.enclosing_block.outputs[index] for index in exact]
        or any(child.op_type in PLAIN and _ends_exactly(child, exact) for child in var.child_ops)
        for var in op.outputs
    )


def _is_compressed(weight: Any) -> bool:
    source = weight.op
    while source is not None and source.op_type == "cast":
        source = source.x.op
    return source is not None and source.op_type.startswith("constexpr")


def _passes(component: Component) -> ct.PassPipeline:
    """`PASSES`, but where states are written last for those two that let attention read the cache where it was just written: they fail."""
    left_out = () if all(state.cache for state in component.signature.states) else STATE_PASSES
    return ct.PassPipeline([f"common::{name}" for name in PASSES if name not in left_out])


def _shape(spec: TensorSpec, component: Component) -> list[Any]:
    return [
        high if low == high else ct.RangeDim(low, high, default=low)
        for low, high in bounds_of(spec, component)
    ]
