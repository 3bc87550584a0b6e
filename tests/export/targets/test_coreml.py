"""Core ML packages: their contents are read back from disk, and single graphs are executed."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import coremltools as ct
import numpy as np
import pytest
import torch
from support.bundle_options import WIDE
from support.export.rounding import float32_bar
from support.export.stored_weights import coreml_weights
from support.files import contents

from voxport.bundle.errors import ExportError
from voxport.bundle.manifest import ExportRequest
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets.apple import dequantized_linear
from voxport.export.targets.base import Graph
from voxport.export.targets.coreml.lowering import blob_values
from voxport.export.targets.coreml.read_back import check_package
from voxport.export.targets.coreml.target import CoreMLTarget
from voxport.model.layers.attention import ReferenceAttention
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.quantize.modules import QuantizedLinear, linear_kernel
from voxport.runtime.mil import Executor, Package

Graphs = dict[str, Graph]
CACHE = 1024


def graphs(checkpoint: Path, request: ExportRequest, *names: str) -> Graphs:
    model = Model(resolve(Source(checkpoint), request), "BHSD", "float16")
    return {name: model.graph(name) for name in names} or {graph.name: graph for graph in model.graphs()}


def lower(graphs: Graphs, folder: Path) -> None:
    for graph in graphs.values():
        CoreMLTarget().lower(graph, folder)


REQUEST = ExportRequest(
    quant="w4", quant_for=(("codec", "w8"),), rules=(WIDE,), options={"euler_steps": 3}, cache_length=CACHE
)


@pytest.fixture(scope="module")
def w4(checkpoint: Path) -> Graphs:
    return graphs(checkpoint, REQUEST)


@pytest.fixture(scope="module")
def packages(bundles: Path) -> Path:
    return bundles / "coreml"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["backbone", "embed_codes"])
def test_same_graphs_give_the_same_bytes(packages: Path, w4: Graphs, tmp_path: Path, name: str) -> None:
    CoreMLTarget().lower(w4[name], tmp_path)
    assert contents(tmp_path / f"{name}.mlpackage") == contents(packages / f"{name}.mlpackage")


def test_the_order_of_blobs_does_not_depend_on_the_process() -> None:
    """The order of protobuf keys differs between processes. Eight are sorted by chance in 1 of 40,320."""
    operation = ct.proto.MIL_pb2.Operation()
    for index, name in enumerate("abcdefgh", start=1):
        operation.inputs[name].arguments.add().value.blobFileValue.offset = index
    assert [value.offset for value in blob_values(operation)] == list(range(1, 9))


def test_reading_a_package_does_not_change_it(packages: Path, w4: Graphs) -> None:
    import coremltools

    before = contents(packages / "embed_text.mlpackage")
    check_package(packages / "embed_text.mlpackage", w4["embed_text"], "float16")
    coremltools.models.MLModel(str(packages / "embed_text.mlpackage"), skip_model_load=True)
    assert contents(packages / "embed_text.mlpackage") == before


def test_conversion_prints_nothing(
    checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lower(graphs(checkpoint, ExportRequest(quant="w8"), "embed_codes"), tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_no_call_widens_a_compressed_weight(realtime_bundles: Path) -> None:
    """A head whose logits were computed in single precision would be cast as a whole for every token: 1.6 GB
    at the published size.
    """
    package = Package(realtime_bundles / "coreml" / "decoder.mlpackage")
    operations = list(package.function("decode_step").operations)
    weights = {
        named.name
        for operation in operations
        if operation.type.startswith("constexpr_")
        for named in operation.outputs
    }
    takers = [
        operation.type
        for operation in operations
        for values in operation.inputs.values()
        for value in values
        if isinstance(value, str) and value in weights
    ]
    assert takers == ["linear"] * len(weights)


def test_the_read_back_detects_a_changed_integer(packages: Path, w4: Graphs) -> None:
    linear = next(part for part in w4["acoustic_step"].module.modules() if isinstance(part, QuantizedLinear))
    linear.weight[0, 0] ^= 1
    try:
        with pytest.raises(
            ExportError, match=r"acoustic_step: the integers or scales of .* differ from the module"
        ):
            check_package(packages / "acoustic_step.mlpackage", w4["acoustic_step"], "float16")
    finally:
        linear.weight[0, 0] ^= 1


@pytest.mark.slow
def test_the_read_back_detects_swapped_weights_in_the_second_function(tmp_path: Path) -> None:
    """Functions share their weights. The fault swaps weights of two layers in the second function only."""
    import coremltools

    deep = graphs(random_checkpoint(), REQUEST, "backbone")
    lower(deep, tmp_path)
    path = tmp_path / "backbone.mlpackage"
    model = path / "Data/com.apple.CoreML/model.mlmodel"
    spec = coremltools.utils.load_spec(str(model))
    function = spec.mlProgram.functions["decode_step"]
    operations = function.block_specializations[function.opset].operations
    weights = [op for op in operations if op.type == "constexpr_blockwise_shift_scale"]
    one, other = next(
        (a, b)
        for i, a in enumerate(weights)
        for b in weights[i + 1 :]
        if a.outputs[0].type == b.outputs[0].type
    )
    before = type(one)()
    before.CopyFrom(one)
    for part in ("data", "scale"):
        one.inputs[part].CopyFrom(other.inputs[part])
        other.inputs[part].CopyFrom(before.inputs[part])
    model.write_bytes(spec.SerializeToString())
    with pytest.raises(
        ExportError, match=r"decode_step: the integers or scales of .* differ from the module"
    ):
        check_package(path, deep["backbone"], "float16")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "other"}, "function other: missing; there are"),
        (lambda s: {"inputs": s.inputs[:1]}, "inputs: found"),
        (
            lambda s: {"outputs": (replace(s.outputs[0], shape=(1, "S", 7)), *s.outputs[1:])},
            "shapes of outputs: found",
        ),
        (lambda s: {"dims": {"S": (1, CACHE - 1)}}, "inputs: found"),
        (lambda s: {"states": s.states[1:]}, "states: found"),
        (lambda s: {"states": (replace(s.states[0], shape=(1, 2, 3, 4)), *s.states[1:])}, "states: found"),
    ],
)
def test_the_read_back_detects_a_changed_interface(
    packages: Path, w4: Graphs, change: Any, message: str
) -> None:
    graph, prefill = w4["backbone"], w4["backbone"].first
    if callable(change):
        change = {"signature": replace(prefill.signature, **change(prefill.signature))}
    changed = replace(graph, components=(replace(prefill, **change),))
    with pytest.raises(ExportError, match=message):
        check_package(packages / "backbone.mlpackage", changed, "float16")


def test_the_read_back_detects_truncated_weights(packages: Path, w4: Graphs, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(packages / "embed_codes.mlpackage", tmp_path / "embed_codes.mlpackage"))
    weights = broken / "Data/com.apple.CoreML/weights/weight.bin"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ExportError, match=r"^embed_codes.mlpackage: "):
        check_package(broken, w4["embed_codes"], "float16")


def test_a_failed_conversion_is_a_one_line_error_and_does_not_change_the_modules(
    w4: Graphs, tmp_path: Path
) -> None:
    graph, module = w4["backbone"], cast(Any, w4["backbone"].module)
    signature = graph.first.signature
    broken = replace(graph.first, signature=replace(signature, inputs=signature.inputs[:1]))
    with pytest.raises(ExportError, match=r"^backbone: Core ML export failed: [^\n]*$"):
        CoreMLTarget().lower(replace(graph, components=(broken,)), tmp_path)
    assert isinstance(module.layers[0].attention.kernel, ReferenceAttention)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("recipe", ["lut4", "8da4w"])
def test_one_graph_in_the_other_recipes_computes_what_the_module_does(
    checkpoint: Path, tmp_path: Path, recipe: str
) -> None:
    """Exported and read back; then calls with the same weights, which differ in the rounding of float32 only.

    A tie of integer activations would move a call further. One call in 12 meets one, so one of three may.
    Dynamic activations are lowered to plain operators.
    """
    graph = graphs(checkpoint, ExportRequest(quant=recipe), "acoustic_step")["acoustic_step"]
    path = tmp_path / "acoustic_step.mlpackage"
    CoreMLTarget().lower(graph, tmp_path)
    function = Package(path).function("acoustic_step")
    kinds = [op.type for op in function.operations]
    assert ("constexpr_lut_to_dense" in kinds) == (recipe == "lut4")
    products = len(coreml_weights(path, "acoustic_step")) if recipe == "8da4w" else 0
    assert kinds.count("round") >= products and bool(products) == (recipe == "8da4w")
    executor, errors = Executor(function, "float32"), []
    for inputs in map(graph.first.example, range(3)):
        with torch.no_grad(), linear_kernel(graph.module, dequantized_linear):
            expected = graph.module(*(torch.from_numpy(array) for array in inputs.values()))
        found = executor.run(
            {
                name: array.astype(np.int32) if array.dtype == np.int64 else array
                for name, array in inputs.items()
            }
        )
        differences = [
            np.abs(found[spec.name] - value.numpy()).max() / float(value.abs().max())
            for spec, value in zip(graph.first.signature.outputs, expected, strict=True)
        ]
        errors.append(max(differences))
    assert np.median(errors) <= float32_bar(
        sums=2 * 6 + 2, products=192
    )  # two layers and two projections; 7e-6
