"""One quantisation, three artifacts: the integers and scales in each file are the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from support.bundle_options import WIDE
from support.export.stored_weights import coreml_weights, onnx_weights
from support.files import contents
from torch.multiprocessing.reductions import StorageWeakRef

from voxport.bundle.errors import ExportError
from voxport.bundle.manifest import ExportRequest
from voxport.export.memory import free_memory
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.export.targets.base import Graph
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.quantize.modules import QuantizedEmbedding, QuantizedLinear


@pytest.fixture(scope="module")
def graphs(checkpoint: Path) -> dict[str, Graph]:
    source = Source(checkpoint)
    request = ExportRequest(quant="w4", quant_for=(("codec", "w8"),), rules=(WIDE,))
    return {graph.name: graph for graph in Model(resolve(source, request), "BSHD").graphs()}


Quantised = QuantizedLinear | QuantizedEmbedding


def parts_of(graph: Graph) -> list[Quantised]:
    return [part for part in graph.module.modules() if isinstance(part, Quantised)]


def is_among(part: Quantised, found: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    stored = part.weight.numpy(), part.scale.numpy()
    return any(all(map(np.array_equal, each, stored)) for each in found)


@pytest.mark.parametrize("name", ["embed_text", "embed_codes", "backbone", "acoustic_step", "codec"])
def test_all_targets_store_the_integers_and_scales_of_the_module(
    bundles: Path, graphs: dict[str, Graph], name: str
) -> None:
    """XNNPACK keeps 8-bit rows as they are, and 4-bit rows as nibbles, offset by 8, the low one first. Its
    scales of groups are bfloat16.
    """
    graph, program = graphs[name], (bundles / "executorch" / f"{name}.pte").read_bytes()
    in_onnx = onnx_weights(bundles / "onnx" / f"{name}.onnx")
    functions = [component.name for component in graph.components]
    in_coreml = {each: coreml_weights(bundles / "coreml" / f"{name}.mlpackage", each) for each in functions}
    assert parts_of(graph)
    for part in parts_of(graph):
        assert is_among(part, in_onnx)
        assert all(is_among(part, found) for found in in_coreml.values())
        integers, scale = part.weight.numpy(), part.scale
        assert (scale == scale.bfloat16().float()).all() and (scale == scale.half().float()).all()
        if isinstance(part, QuantizedEmbedding) or part.scheme.bits == 8:
            assert integers.tobytes() in program and scale.numpy().tobytes() in program
        else:
            shifted = (integers.astype(np.int16) + 8).astype(np.uint8)
            assert (shifted[:, 0::2] | (shifted[:, 1::2] << 4)).tobytes() in program
            assert (scale.numpy().view(np.uint32) >> 16).astype(np.uint16).tobytes() in program


@pytest.mark.parametrize(
    ("place", "changed"), [(1, lambda integer: integer ^ 1), (3, lambda scale: scale * 1.02)]
)
def test_reading_an_onnx_graph_back_finds_one_changed_value(
    bundles: Path, graphs: dict[str, Graph], tmp_path: Path, place: int, changed: Callable[[Any], Any]
) -> None:
    target, file = open_target("onnx"), "codec.onnx"
    assert "linears are equal" in target.check(graphs["codec"], bundles / "onnx")
    model = onnx.load(bundles / "onnx" / file)
    node = next(node for node in model.graph.node if node.op_type == "MatMulIntegerToFloat")
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[place])
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.flat[0] = changed(values.flat[0])
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(model, tmp_path / file)
    with pytest.raises(ExportError, match="no linear has the integers and scales of"):
        target.check(graphs["codec"], tmp_path)


@pytest.mark.parametrize(
    ("graph", "constant", "changed"),
    [
        ("backbone", "scale", lambda scale: scale * 1.02),  # of groups, in bfloat16
        ("codec", "scale", lambda scale: scale * 1.02),  # of channels, in float32
        ("codec", "weight", lambda integer: integer ^ 1),
    ],
)
def test_reading_a_program_back_finds_one_changed_value(
    bundles: Path,
    graphs: dict[str, Graph],
    tmp_path: Path,
    graph: str,
    constant: str,
    changed: Callable[[Any], Any],
) -> None:
    target = open_target("executorch")
    name, linear = next(
        entry for entry in graphs[graph].module.named_modules() if isinstance(entry[1], QuantizedLinear)
    )
    assert "linears are equal" in target.check(graphs[graph], bundles / "executorch")
    values = getattr(linear, constant).clone()
    values[0, 0] = changed(values[0, 0])
    dtype = torch.bfloat16 if constant == "scale" and linear.scheme.group else values.dtype
    old, new = (
        tensor.to(dtype).view(torch.uint8).numpy().tobytes() for tensor in (getattr(linear, constant), values)
    )
    program = (bundles / "executorch" / f"{graph}.pte").read_bytes()
    (tmp_path / f"{graph}.pte").write_bytes(program.replace(old, new))
    with pytest.raises(ExportError, match=f"no linear has the integers and scales of {name}"):
        target.check(graphs[graph], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml"])
def test_packing_a_lowered_graph_frees_its_unpacked_integers(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that a tool keeps of a lowered program would take 3.4 GB at the published size."""
    monkeypatch.setattr("voxport.export.memory.MIN_RESIDENT", 0)
    monkeypatch.setattr("voxport.export.memory.MIN_GROWTH", 0)
    lowering = open_target(target)
    model = Model(
        resolve(Source(random_checkpoint("voxtral_realtime")), ExportRequest(quant="8da4w")),
        lowering.layout,
        lowering.compute_precision,
    )
    graph = model.graph("decoder")
    linears = [
        part for part in graph.module.modules() if isinstance(part, QuantizedLinear) and part.scheme.bits == 4
    ]
    held = [StorageWeakRef(linear.weight.untyped_storage()) for linear in linears]
    lowering.lower(graph, tmp_path)
    model.pack("decoder")
    free_memory()
    assert linears and all(reference.expired() for reference in held)


def test_executorch_plans_memory_for_one_set_of_caches(bundles: Path) -> None:
    """A loaded method holds memory for the largest sizes of its inputs and outputs, beside the states."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    program = deserialize_pte_binary((bundles / "executorch" / "backbone.pte").read_bytes()).program
    planned = {plan.name: plan.non_const_buffer_sizes for plan in program.execution_plan}
    for _, beside, caches in (planned["backbone.read"], planned["backbone.write"]):
        assert beside < caches / 2 and caches == planned["backbone"][2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "executorch"])
def test_w4_and_8da4w_are_one_program(name: str, checkpoint: Path, tmp_path: Path) -> None:
    """Their kernels round activations for either recipe, so documents count the two as one."""
    target, found = open_target(name), {}
    for recipe in ("w4", "8da4w"):
        resolved = resolve(Source(checkpoint), ExportRequest(quant=recipe, cache_length=64))
        (tmp_path / recipe).mkdir()
        target.lower(Model(resolved, target.layout).graph("acoustic_step"), tmp_path / recipe)
        found[recipe] = contents(tmp_path / recipe)
    assert found["w4"] and found["w4"] == found["8da4w"]
