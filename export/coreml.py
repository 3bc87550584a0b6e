"""Lowering to Core ML: constant weights of 4 and 8 bits, half-precision states, one package per graph.

Each package is read back from disk and compared with the modules that it was made from; what it computes is for `verify`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from export.errors import ExportError
from export.lowering import EntryPoint, Graph, Lowering, Stateful, dynamic_shapes, example_inputs, quiet_logs, zero_states
from model.component import Component, Kind, TensorSpec
from model.layers.attention import AttentionKernel, ReferenceAttention, use_attention
from quantize.linear import QuantizedEmbedding, QuantizedLinear, use_product
from quantize.palettes import PalettizedLinear
from quantize.scales import SMALLEST_SCALE
from runtime.errors import first_line

with quiet_logs("coremltools"):  # it tells of the framework that only macOS has, and of versions that it has not seen
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load as load_program
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry
    from coremltools.converters.mil.mil.types.symbolic import is_symbolic
    from coremltools.models.utils import MultiFunctionDescriptor, save_multifunction

OPSET, OPSET_NAME = ct.target.iOS18, "CoreML8"  # the first with states and with scales per block
PALETTIZATION = 2  # coremltools' number for this kind of compression
RANGES = {4: (-8, 7), 8: (-128, 127)}  # the only two that the converter takes; the integers of a scheme lie inside
MASKED = -1e4  # finite: a half-precision softmax stays defined where a whole row is masked
DTYPES = {"float32": np.float32, "int64": np.int32}  # Core ML has no 64-bit integers
HALF_MAX = float(np.finfo(np.float16).max)
NORM_PEAK = 8.0  # rows are brought to this magnitude before they are squared: neither squares nor epsilons leave half precision
Compressed = QuantizedLinear | QuantizedEmbedding | PalettizedLinear
ArrayType = ct.proto.FeatureTypes_pb2.ArrayFeatureType
ARRAY_TYPES = {"float32": ArrayType.FLOAT32, "int64": ArrayType.INT32}
EXACT = (Kind.LOGITS, Kind.LATENT)  # outputs that are rounded to codes: single precision from the last product on
PLAIN = {"add", "sub", "mul", "real_div", "split", "slice_by_index", "reshape", "expand_dims", "squeeze", "concat", "stack", "cast", "identity"}
STATE_OPS = {"coreml_update_state"}  # how coremltools reads `write_state`
CONTENT = "Data/com.apple.CoreML"
METADATA = "com.github.apple.coremltools."


def spell_product(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """x [..., K] -> [..., N]: dequantised weights, and activations as the scheme asks. For reference and lowering alike."""
    if linear.scheme.activations == "int8":
        x = _int8_rows(x)
    low, high = RANGES[linear.scheme.bits]
    return F.linear(x, torch.ops.torchao.dequantize_affine(linear.weight, [1, linear.block], linear.scale, None, torch.int8, low, high))


def _int8_rows(x: torch.Tensor) -> torch.Tensor:
    """`int8_per_token`'s activations in plain operators; the scale is kept where half precision is normal.

    Divided by the scale, not multiplied by `1 / scale`: the converter's reciprocal adds 1e-4 to what it inverts.
    """
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=SMALLEST_SCALE)
    zero = (-128 - torch.round(low / scale)).clamp(-128, 127)
    return ((torch.round(x / scale) + zero).clamp(-128, 127) - zero) * scale


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


RESPELLED = {torch.ops.aten.rms_norm.default: _rms_norm, torch.ops.aten.where.Scalar: _where_scalars, torch.ops.aten.mul.Tensor: _scaled}


class OneHotAttention(AttentionKernel):
    """Caches [1, H_kv, L, D], each rewritten whole by a one-hot product.

    Query heads stay apart from their groups (rank 5), because merging them beside a dynamic S puts guards on strides.
    """

    layout = "BHSD"

    def cached(self, q, k, v, rotation, k_cache, v_cache, position):
        q, k = rotation(q), rotation(k)
        rows, heads, head_dim = q.shape[1:]
        kv_heads, length = k_cache.shape[1:3]
        at = (position + torch.arange(rows))[:, None]  # [S, 1]
        slots = torch.arange(length)
        chosen = (slots == at).to(q.dtype)  # [S, L]
        kept = 1 - chosen.sum(0)[:, None]  # [L, 1]
        spread = chosen.transpose(0, 1)[None, None]  # [1, 1, L, S]
        k_cache, v_cache = (cache * kept + spread @ new.transpose(1, 2) for cache, new in ((k_cache, k), (v_cache, v)))
        grouped = (q * head_dim**-0.5).transpose(1, 2).reshape(1, kv_heads, heads // kv_heads, rows, head_dim)
        scores = grouped @ k_cache[:, :, None].transpose(3, 4) + (slots > at).to(q.dtype) * MASKED  # [1, H_kv, H / H_kv, S, L]
        out = scores.softmax(-1) @ v_cache[:, :, None]
        return out.permute(0, 3, 1, 2, 4).reshape(1, rows, heads, head_dim), k_cache, v_cache


class CoreMLLowering(Lowering):
    """One `.mlpackage` per graph with a function per component; functions share weights and name the same states."""

    target = "coreml"
    layout = OneHotAttention.layout
    product = staticmethod(spell_product)
    runners = ("Core ML", "reference executor") if sys.platform == "darwin" else ("reference executor", "Core ML")
    precisions = (None if sys.platform == "darwin" else "float16", "float32")
    integer_kernels = False
    packages = ("torch", "torchao", "coremltools")

    def __init__(self, compute_precision: str = "float16"):
        """float32 is for comparison, and for the CPU and GPU alone: the Neural Engine computes in half precision only."""
        self.compute_precision = compute_precision

    def lower(self, graph: Graph, folder: Path) -> dict[str, EntryPoint]:
        path = folder / f"{graph.name}.mlpackage"
        try:
            with _quiet():
                _write_package(graph, path, self.compute_precision)
        except Exception as error:
            raise ExportError(f"{graph.name}: Core ML export failed: {type(error).__name__}: {first_line(error)}") from error
        finally:
            use_product(graph.widest.module, spell_product)
            use_attention(graph.widest.module, ReferenceAttention(self.layout))
        self.check(graph, folder)
        return {component.name: EntryPoint(path.name, component.name) for component in graph.components}

    def computes_in_half(self, precision: str | None) -> bool:
        return precision != "float32"

    def check(self, graph: Graph, folder: Path) -> str:
        """Functions, states, integers and scales of a saved graph, read back. Raises ExportError."""
        check_package(folder / f"{graph.name}.mlpackage", graph, self.compute_precision)
        return "functions, states, and integers and scales of quantised weights are right"


def _write_package(graph: Graph, path: Path, compute_precision: str) -> None:
    use_product(graph.widest.module, spell_product)
    use_attention(graph.widest.module, OneHotAttention())
    _tell_palettes(graph.widest.module)
    functions, parts = MultiFunctionDescriptor(), {}
    with TemporaryDirectory(dir=path.parent, prefix=".coreml") as temporary:
        for component in graph.components:
            bounds = str((component.inputs, component.dims))
            if bounds not in parts:  # components of the same bounds are one program under two names
                parts[bounds] = f"{temporary}/{component.name}.mlpackage"
                _convert(component, compute_precision).save(parts[bounds])
            functions.add_function(parts[bounds], "main", component.name)
        functions.default_function_name = graph.widest.name
        save_multifunction(functions, str(path))
    _normalise(path)


def _tell_palettes(module: nn.Module) -> None:
    """In the buffers from which the converter learns how a weight is compressed."""
    for part in module.modules():
        if isinstance(part, PalettizedLinear):
            part.register_buffer("_COREML_/weight/compression_type", torch.tensor([PALETTIZATION]))
            part.register_buffer("_COREML_/weight/lut", part.get_buffer("palette")[:, None, :, None])  # [N / channels, 1, values, 1]


def _convert(component: Component, compute_precision: str) -> ct.models.MLModel:
    trace_inputs = tuple(Graph(component.graph, (component,)).trace_inputs().values())
    dynamic = (tuple(shapes or None for shapes in dynamic_shapes(component)),)
    with torch.no_grad():
        # strict: no; the inputs are *args, which strict tracing renames
        program = torch.export.export(Stateful(component), trace_inputs, dynamic_shapes=dynamic, strict=False)
    exact = [index for index, spec in enumerate(component.outputs) if spec.kind in EXACT]
    mixed = ct.transform.FP16ComputePrecision(lambda op: not _ends_exactly(op, exact))
    return ct.convert(
        program.run_decompositions(RESPELLED),
        convert_to="mlprogram",
        inputs=[ct.TensorType(spec.name, _shape(spec, component), DTYPES[spec.dtype]) for spec in component.inputs],
        outputs=[ct.TensorType(spec.name, dtype=DTYPES[spec.dtype]) for spec in component.outputs],
        minimum_deployment_target=OPSET,
        compute_precision=mixed if compute_precision == "float16" else ct.precision.FLOAT32,
        pass_pipeline=_passes(component),
        skip_model_load=True,
    )


def _ends_exactly(op: Any, exact: list[int]) -> bool:
    """Whether an operation stays in single precision: it is the last product before one of the outputs `exact`, or lies behind it."""
    return (op.op_type in PLAIN or op.op_type == "linear") and any(
        var in [op.enclosing_block.outputs[index] for index in exact] or any(child.op_type in PLAIN and _ends_exactly(child, exact) for child in var.child_ops)
        for var in op.outputs
    )


def _passes(component: Component) -> ct.PassPipeline:
    """The default ones, but for one that multiplies with a rounded 1 / x where a division by x was exact; and but for
    two that let attention read the cache where it was just written, which fail on states written last."""
    pipeline = ct.PassPipeline()
    pipeline.remove_passes({"common::divide_to_multiply"})
    if not any(state.is_cache for state in component.states):
        pipeline.remove_passes({"common::canonicalize_inplace_pattern", "common::prefer_state_in_downstream"})
    return pipeline


def _bounds(spec: TensorSpec, component: Component) -> list[tuple[int, int]]:
    """Smallest and largest size of every axis."""
    return [(size, size) if isinstance(size, int) else component.dims[size] for size in spec.shape]


def _shape(spec: TensorSpec, component: Component) -> list[Any]:
    return [high if low == high else ct.RangeDim(low, high, default=low) for low, high in _bounds(spec, component)]


def _normalise(path: Path) -> None:
    """Takes out dates and random identifiers, so that equal models are equal bytes; and coremltools' modes, which let nobody else read."""
    (path / "executorch_debug_handle_mapping.json").unlink(missing_ok=True)
    model = path / CONTENT / "model.mlmodel"
    spec = ct.utils.load_spec(str(model))
    for key in [key for key in spec.description.metadata.userDefined if key.startswith(METADATA)]:
        del spec.description.metadata.userDefined[key]
    model.write_bytes(spec.SerializeToString(deterministic=True))
    manifest = json.loads((path / "Manifest.json").read_text())
    names = {old: _identifier(entry["path"]) for old, entry in manifest["itemInfoEntries"].items()}
    manifest["itemInfoEntries"] = {names[old]: entry for old, entry in manifest["itemInfoEntries"].items()}
    manifest["rootModelIdentifier"] = names[manifest["rootModelIdentifier"]]
    # spaced as coremltools does it, which writes this file again whenever it opens the package
    (path / "Manifest.json").write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n")

    mask = os.umask(0)
    os.umask(mask)
    for part in path.rglob("*"):
        part.chmod((0o777 if part.is_dir() else 0o666) & ~mask)


def _identifier(place: str) -> str:
    """A UUID that depends on the item's place only."""
    digest = hashlib.sha256(place.encode()).hexdigest().upper()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def read_quantized_weights(path: Path, function: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Integers int8 [N, K] and scales float32 [N, K / block] of every quantised product and table, in the order of use."""
    _, program = _read(path)
    return _quantized_weights(program.functions[function])


def check_package(path: Path, graph: Graph, compute_precision: str = "float16") -> None:
    """Reads a saved package and compares its functions with the components. Raises ExportError that names the first difference."""
    try:
        spec, program = _read(path)
    except Exception as error:
        raise ExportError(f"{path.name}: cannot be read back: {type(error).__name__}: {first_line(error)}") from error
    described = {function.name: function for function in spec.description.functions}
    for component in graph.components:
        where = f"{path.name}: function {component.name}"
        if component.name not in described or component.name not in program.functions:
            raise ExportError(f"{where}: missing; there are {', '.join(described) or 'none'}")
        function, proto = program.functions[component.name], spec.mlProgram.functions[component.name]
        _check_interface(where, described[component.name], function, component)
        _compare(where, "opset", proto.opset, OPSET_NAME)
        products = {ct.converters.mil.mil.types.builtin_to_string(op.outputs[0].dtype) for op in function.operations if op.op_type in ("linear", "matmul")}
        if products:
            _compare(where, "compute precision", "float16" if "fp16" in products else "float32", compute_precision)
        foreign = {op.op_type for op in function.operations if OPSET not in SSAOpRegistry.core_ops.get(op.op_type, ())} - STATE_OPS
        _compare(where, "operators outside iOS 18", sorted(foreign), [])
        _check_weights(where, _quantized_weights(function), component)


def _read(path: Path) -> tuple[Any, Any]:
    """The specification and the program, weights included."""
    with _quiet():
        spec = ct.utils.load_spec(str(path / CONTENT / "model.mlmodel"))
        return spec, load_program(spec, spec.specificationVersion, str(path / CONTENT / "weights"))


def _compare(where: str, what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise ExportError(f"{where}: {what}: found {found}, expected {expected}")


def _check_interface(where: str, described: Any, function: Any, component: Component) -> None:
    """Names, kinds of numbers and sizes. A size that an output takes from an input is known as an expression only."""
    inputs = {part.name: _described(part.type.multiArrayType) for part in described.input}
    _compare(where, "inputs", inputs, {spec.name: (ARRAY_TYPES[spec.dtype], _bounds(spec, component)) for spec in component.inputs})
    states = {part.name: _described(part.type.stateType.arrayType) for part in described.state}
    names = [f"{component.graph}_{state.name}" for state in component.states]
    expected = {name: (ArrayType.FLOAT16, [(size, size) for size in state.shape]) for name, state in zip(names, component.states, strict=True)}
    _compare(where, "states", states, expected)
    kinds = {part.name: part.type.multiArrayType.dataType for part in described.output}
    _compare(where, "outputs", kinds, {spec.name: ARRAY_TYPES[spec.dtype] for spec in component.outputs})
    shapes = [(part.name, [str(component.dims) if is_symbolic(size) else int(size) for size in part.shape]) for part in function.outputs]
    fixed = [(spec.name, [size if isinstance(size, int) else str(component.dims) for size in spec.shape]) for spec in component.outputs]
    _compare(where, "shapes of outputs", shapes, fixed)


def _described(array: Any) -> tuple[int, list[tuple[int, int]]]:
    ranges = [(size.lowerBound, size.upperBound) for size in array.shapeRange.sizeRanges]
    return array.dataType, ranges or [(size, size) for size in array.shape]


def _check_weights(where: str, found: list[tuple[np.ndarray, np.ndarray]], component: Component) -> None:
    expected = _calls(component)
    _compare(where, "number of quantised weights", len(found), len(expected))
    for (integers, scale), (name, module) in zip(found, expected, strict=True):
        if not all(map(np.array_equal, (integers, scale), _held(module))):
            raise ExportError(f"{where}: the integers or scales of {name} are not those of the module")


def _held(module: Compressed) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers and scales, or indices and palettes."""
    names = ("indices", "palette") if isinstance(module, PalettizedLinear) else ("weight", "scale")
    return module.get_buffer(names[0]), module.get_buffer(names[1])


def _calls(component: Component) -> list[tuple[str, Compressed]]:
    """The quantised modules in the order of their calls; products are left out of the run, so that it costs little."""
    called: list[tuple[str, Compressed]] = []
    parts = {name: part for name, part in component.module.named_modules() if isinstance(part, Compressed)}
    hooks = [part.register_forward_pre_hook(lambda module, _, name=name: called.append((name, module))) for name, part in parts.items()]
    use_product(component.module, lambda x, linear: x.new_zeros(*x.shape[:-1], len(linear.get_buffer("scale"))))
    inputs = example_inputs(component, {dim: low for dim, (low, _) in component.dims.items()})
    try:
        with torch.no_grad():
            component.module(*inputs.values(), *zero_states(component))
    finally:
        use_product(component.module, spell_product)
        for hook in hooks:
            hook.remove()
    return called


def _quantized_weights(function: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """A product takes a constant expression; a table is a gather of int8 rows, followed by the gather of their scales."""
    weights, table = [], None
    for op in function.operations:
        for source in (value.op for value in op.inputs.values() if not isinstance(value, list | tuple) and value.op):
            if source.op_type == "constexpr_lut_to_dense":
                weights.append((source.indices.val.astype(np.uint8), source.lut.val[:, 0, :, 0].astype(np.float32)))
            if source.op_type == "constexpr_blockwise_shift_scale" and source.offset is None:
                weights.append((source.data.val.astype(np.int8), source.scale.val.astype(np.float32)))
        if op.op_type == "gather" and table is not None:
            weights.append((table, op.x.val.astype(np.float32)))
            table = None
        elif op.op_type == "gather" and op.x.val is not None and op.x.val.dtype == np.int8:
            table = op.x.val
    return weights


@contextmanager
def _quiet() -> Iterator[None]:
    """The converter prints bars on stderr and warns of what is of no use to a user; what goes wrong it raises."""
    with warnings.catch_warnings(), quiet_logs("coremltools", "torch", "torchao"), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
