"""Lowering of one graph to a Core ML package: torch traces and coremltools converts each component."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from voxport.bundle.manifest import Precision
from voxport.bundle.spec import Kind, TensorSpec
from voxport.export.memory import free_memory
from voxport.export.targets.base import Graph
from voxport.export.targets.coreml.kernels import DECOMPOSITIONS, OneHotAttention, TracedLinears
from voxport.export.targets.coreml.package import merge, normalise
from voxport.export.targets.coreml.read_back import bounds_of
from voxport.export.targets.coreml.tools import OPSET, Builder, ct, without_converter_output
from voxport.export.targets.tracing import export_errors, target_kernels, trace
from voxport.model.component import Component

DTYPES = {"float32": np.float32, "int64": np.int32, "int32": np.int32}  # Core ML has no 64-bit integers
# Outputs that are rounded to codes. They are computed in float32 from the last product on, unless its weight
# is compressed.
FLOAT32_KINDS = (Kind.LOGITS, Kind.LATENT)
# The passes of coremltools that these programs need, in its order. With all of its passes the predictor of
# Qwen3-TTS takes two thirds longer, and `divide_to_multiply` multiplies by a rounded 1 / x.
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
# Operations that may follow the last product in float32.
ELEMENTARY = {
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


def lower_graph(graph: Graph, path: Path, precision: Precision) -> None:
    """Writes the package `path`. Raises ExportError."""
    parts: dict[str, Path] = {}
    converted: dict[str, Path] = {}
    with (
        export_errors(f"{graph.name}: Core ML export failed"),
        without_converter_output(),
        TemporaryDirectory(dir=path.parent, prefix=".coreml") as temporary,
    ):
        # otherwise names of operations depend on the programs that this process read or lowered before
        Builder.name_count.clear()
        for component in graph.components:
            bounds = str((component.signature.inputs, component.signature.dims))
            if bounds not in converted:  # components of the same bounds are one program under two names
                converted[bounds] = Path(temporary, f"{component.name}.mlpackage")
                _convert(component, graph.module, precision, converted[bounds])
                free_memory()
            parts[component.name] = converted[bounds]
        merge(parts, graph.first.name, path)
        normalise(path)


def _convert(component: Component, module: nn.Module, precision: Precision, path: Path) -> None:
    signature = component.signature
    with torch.no_grad(), target_kernels(module, TracedLinears(), OneHotAttention()):
        program = trace(component, module)
    _look_up_once(program.graph)
    exact = [index for index, spec in enumerate(signature.outputs) if spec.kind in FLOAT32_KINDS]
    mixed = ct.transform.FP16ComputePrecision(lambda op: not _stays_float32(op, exact))
    ct.convert(
        program.run_decompositions(DECOMPOSITIONS),
        convert_to="mlprogram",
        inputs=[
            ct.TensorType(spec.name, _shape(spec, component), DTYPES[spec.dtype]) for spec in signature.inputs
        ],
        outputs=[ct.TensorType(spec.name, dtype=DTYPES[spec.dtype]) for spec in signature.outputs],
        minimum_deployment_target=OPSET,
        compute_precision=mixed if precision == "float16" else ct.precision.FLOAT32,
        pass_pipeline=pass_pipeline(component),
        package_dir=str(path),
        skip_model_load=True,
    )


def _look_up_once(graph: torch.fx.Graph) -> None:
    """Keeps one look-up of each palette, however often a trace calls its linear, as `TracedLinears` does."""
    first: dict[tuple[Any, ...], torch.fx.Node] = {}  # Any: arguments of a node
    for node in list(graph.nodes):
        if node.target is torch.ops.voxport.look_up.default and first.setdefault(node.args, node) is not node:
            node.replace_all_uses_with(first[node.args])
            graph.erase_node(node)


def _stays_float32(op: Any, exact: list[int]) -> bool:
    """Whether an operation (of coremltools, untyped) is the last product before one of the outputs `exact`,
    or follows it.

    A product with a compressed weight is not: the weight is stored in float16, and every call would convert
    all of it.
    """
    return (op.op_type in ELEMENTARY or (op.op_type == "linear" and not _is_compressed(op.weight))) and any(
        var in [op.enclosing_block.outputs[index] for index in exact]
        or any(child.op_type in ELEMENTARY and _stays_float32(child, exact) for child in var.child_ops)
        for var in op.outputs
    )


def _is_compressed(weight: Any) -> bool:
    source = weight.op
    while source is not None and source.op_type == "cast":
        source = source.x.op
    return source is not None and source.op_type.startswith("constexpr")


def pass_pipeline(component: Component) -> ct.PassPipeline:
    """`PASSES`. The two passes that let attention read the new cache fail if other states are written, and
    are left out then.
    """
    left_out = () if all(state.cache for state in component.signature.states) else STATE_PASSES
    return ct.PassPipeline([f"common::{name}" for name in PASSES if name not in left_out])


def _shape(spec: TensorSpec, component: Component) -> list[Any]:
    return [
        high if low == high else ct.RangeDim(low, high, default=low)
        for low, high in bounds_of(spec, component)
    ]
