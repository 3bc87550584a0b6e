"""Core AI assets: their contents are read back from disk, and equal graphs have equal bytes."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.export.coreai_graph import (
    ROWS,
    WIDTH,
    by_length_graph,
    endings_graph,
    layers_graph,
    lower_in_new_process,
)
from support.files import contents
from torch.export import ExportedProgram

from voxport.bundle.errors import ExportError
from voxport.export.targets.base import Graph
from voxport.export.targets.coreai import half
from voxport.export.targets.coreai.bytecode import Bytecode
from voxport.export.targets.coreai.copies import write_copy
from voxport.export.targets.coreai.lowering import HASH, METADATA, PROGRAM, lower_graph, normalise
from voxport.export.targets.coreai.read_back import check_package
from voxport.export.targets.coreai.tools import AIModelAsset, Context, TorchConverter, dialect, ir

DECODERS = ("coreai.blockwise_shift_scale", "coreai.lut_to_dense")
Edit = Callable[[list[Any], list[Any]], None]  # Any: operations of the IR


@pytest.fixture(scope="module")
def graph() -> Graph:
    return layers_graph()


@pytest.fixture(scope="module")
def assets(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The asset in each precision. Nobody changes them."""
    folder = tmp_path_factory.mktemp("coreai")
    found = {precision: folder / precision / "layers.aimodel" for precision in ("float16", "float32")}
    lower_graph(graph, found["float16"], "float16")
    lower_graph(graph, found["float32"], "float32")
    return found


@pytest.fixture
def asset(assets: dict[str, Path], tmp_path: Path) -> Path:
    """A float32 asset that a test may damage."""
    return Path(shutil.copytree(assets["float32"], tmp_path / "layers.aimodel"))


def edit(asset: Path, change: Edit) -> None:
    """Changes the second function of an asset: `change(operations, decoders)`."""
    with Context(), ir.Location.unknown():
        program = AIModelAsset.load(asset).program
        functions: Any = program._module._mlir_module.body.operations
        function = next(each for each in functions if each.sym_name.value == "decode_step")
        operations = list(function.regions[0].blocks[0].operations)
        change(operations, [op for op in operations if op.name in DECODERS])
        program.save_asset(asset)
    normalise(asset)


def swap(one: Any, other: Any, *places: int) -> None:
    for place in places:
        one.operands[place], other.operands[place] = other.operands[place], one.operands[place]


def test_an_asset_equals_its_graph(assets: dict[str, Path], graph: Graph) -> None:
    before = contents(assets["float32"])
    check_package(assets["float32"], graph, "float32")
    check_package(assets["float16"], graph, "float16")
    assert contents(assets["float32"]) == before


def test_another_process_writes_the_same_bytes(assets: dict[str, Path], tmp_path: Path) -> None:
    """Names of weights depend on a seed of the process, names of subgraphs are random, and it has a date."""
    again = lower_in_new_process(tmp_path, "float32", hash_seed=1)
    assert contents(again) == contents(assets["float32"])


def test_functions_share_one_copy_of_each_weight(assets: dict[str, Path]) -> None:
    sizes = {name: len(data) for name, data in Bytecode(assets["float16"] / PROGRAM).blobs().items()}
    half, scales = WIDTH * WIDTH // 2, 2 * WIDTH
    assert {name: size for name, size in sizes.items() if name.startswith("layers.")} == {
        **{f"layers.{name}.integers": half for name in ("first", "second", "palettes", "others")},
        "layers.wide.integers": 2 * half,
        **{f"layers.{name}.scales.f16": 2 * scales for name in ("first", "second")},
        "layers.wide.scales.f16": scales,
        **{f"layers.{name}.scales.f16": scales * 16 // 8 for name in ("palettes", "others")},
    }


def test_the_converter_holds_no_integers_of_a_linear(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would copy every weight of the program that it is given."""
    add, given = TorchConverter.add_exported_program, set[str]()

    def recorded(converter: TorchConverter, program: ExportedProgram, **options: Any) -> TorchConverter:
        given.update(program.graph_signature.buffers, program.state_dict)
        return add(converter, program, **options)

    monkeypatch.setattr(TorchConverter, "add_exported_program", recorded)
    lower_graph(graph, tmp_path / "layers.aimodel", "float16")
    assert "module.table.weight" in given and not [name for name in given if ".layers." in name]


def second_copy(operations: list[Any], decoders: list[Any]) -> None:
    values = np.zeros((WIDTH, WIDTH // 2), np.uint8)
    attribute = ir.DenseResourceElementsAttr.get_from_buffer(
        values.data, "other", decoders[0].operands[0].type
    )
    with ir.InsertionPoint(decoders[0]):
        decoders[0].operands[0] = dialect.ConstantOp(value=attribute).result  # type: ignore[no-untyped-call]


def narrowed_product(operations: list[Any], decoders: list[Any]) -> None:
    product = next(op for op in operations if "matmul" in op.name)
    with ir.InsertionPoint(product):
        half = dialect.cast(product.operands[0], ir.F16Type.get())
        product.operands[0] = dialect.cast(half, ir.F32Type.get())


def one_product_twice(operations: list[Any], decoders: list[Any]) -> None:
    first, second = (next(iter(decoder.results[0].uses)).owner for decoder in decoders[:2])
    second.operands[0] = first.operands[0]


def shifted(operations: list[Any], decoders: list[Any]) -> None:
    scales = decoders[0].operands[1]
    decoders[0].operands[3] = scales


def one_product_less(operations: list[Any], decoders: list[Any]) -> None:
    transposed = next(iter(decoders[0].results[0].uses)).owner
    product = next(iter(transposed.results[0].uses)).owner
    product.results[0].replace_all_uses_with(product.operands[0])
    product.erase()


def state_not_written(operations: list[Any], decoders: list[Any]) -> None:
    write = next(op for op in operations if op.name == "coreai.write_handle")
    write.results[0].replace_all_uses_with(write.operands[2])  # a token, which orders them
    write.erase()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _, found: swap(found[0], found[1], 0, 1), "weights of layers.first: found"),  # the wrong copy
        (lambda _, found: swap(found[0], found[1], 1), "weights of layers.first: found"),
        (
            lambda _, found: swap(found[3], found[4], 1),
            "weights of layers.palettes: found",
        ),  # another palette
        (one_product_twice, "weights of layers.second: found"),
        (second_copy, "weights of layers.first: found"),
        (one_product_less, "number of quantised weights: found 5, expected 6"),
        (state_not_written, r"written states: found \[\]"),
        (shifted, "zero points, minima and axes of weights: found"),
        (narrowed_product, "decode_step: float16 in a float32 program or norm: found True"),
    ],
)
def test_a_fault_in_the_second_function_is_found(
    asset: Path, graph: Graph, change: Edit, message: str
) -> None:
    edit(asset, change)
    with pytest.raises(ExportError, match=f"^layers.aimodel: [^\n]*{message}[^\n]*$"):
        check_package(asset, graph, "float32")


def test_a_function_with_the_weights_of_another_function_is_found(tmp_path: Path) -> None:
    (graph, module), asset = by_length_graph(), tmp_path / "by_length.aimodel"
    lower_graph(graph, asset, "float32")
    check_package(asset, graph, "float32")
    module.ignores_length = True
    lower_graph(graph, asset, "float32")
    module.ignores_length = False
    with pytest.raises(ExportError, match=r"function decode_step: the integers or scales of short differ"):
        check_package(asset, graph, "float32")


def test_scales_of_another_group_are_found(asset: Path, graph: Graph) -> None:
    scales = Bytecode(asset / PROGRAM).blobs()["layers.second.scales.f32"].tobytes()
    groups = np.frombuffer(scales, np.float32).reshape(WIDTH, 2)
    code = (asset / PROGRAM).read_bytes()
    (asset / PROGRAM).write_bytes(code.replace(scales, groups[:, ::-1].tobytes()))
    normalise(asset)  # writes the hash
    with pytest.raises(ExportError, match=r"the integers or scales of layers\.second differ from the module"):
        check_package(asset, graph, "float32")


def test_a_path_of_the_machine_is_found(asset: Path, graph: Graph) -> None:
    code = (asset / PROGRAM).read_bytes()
    (asset / PROGRAM).write_bytes(code.replace(b"layers.first.integers", b"/ayers.first.integers"))
    normalise(asset)  # writes the hash
    with pytest.raises(ExportError, match=r"paths of this machine: found \[b'/ayers\.first\.integers'\]"):
        check_package(asset, graph, "float32")


def test_a_float16_program_with_float32_products_is_found(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half, "norms", lambda found: set(found.nodes))
    lower_graph(graph, tmp_path / "layers.aimodel", "float16")
    with pytest.raises(ExportError, match="precision of products: found False"):
        check_package(tmp_path / "layers.aimodel", graph, "float16")


def test_a_disk_without_space_is_a_one_line_error(
    assets: dict[str, Path], graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    path, message = (
        tmp_path / "layers.aimodel",
        r"needs about 0\.0\d\d GB, 0\.000 GB are free; free space there$",
    )
    with pytest.raises(ExportError, match=message):
        lower_graph(graph, path, "float32")
    with pytest.raises(ExportError, match=message):
        write_copy(assets["float16"], path, "float32")
    assert not list(tmp_path.iterdir())


def test_a_program_of_another_precision_is_found(assets: dict[str, Path], graph: Graph) -> None:
    for precision in ("float16", "float32"):
        other = "float32" if precision == "float16" else "float16"
        with pytest.raises(ExportError, match="prefill: inputs: found"):
            check_package(assets[other], graph, precision)


def test_a_layer_norm_in_half_precision_is_found(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half, "norms", lambda _: set())
    lower_graph(graph, tmp_path / "layers.aimodel", "float16")
    with pytest.raises(
        ExportError, match=r"layer_norm_\d+: float16 in a float32 program or norm: found True"
    ):
        check_package(tmp_path / "layers.aimodel", graph, "float16")


def test_what_follows_a_last_product_is_float32_whatever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, asset = endings_graph(), tmp_path / "endings.aimodel"
    lower_graph(graph, asset, "float16")
    check_package(asset, graph, "float16")
    with Context():
        lines = str(AIModelAsset.load(asset).program).splitlines()
    active = [line for line in lines if "coreai.tanh" in line or "coreai.exp " in line]
    assert len(active) == 2 and not any("f16" in line for line in active)
    monkeypatch.setattr(half, "last_products", lambda _: set())
    lower_graph(graph, asset, "float16")
    with pytest.raises(ExportError, match=r"precision of norms and last products: found \{'f16'\}"):
        check_package(asset, graph, "float16")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "other"}, "functions: found"),
        (lambda s: {"inputs": ()}, "inputs: found"),
        (lambda s: {"inputs": (replace(s.inputs[0], dtype="float32"),)}, "inputs: found"),
        (lambda s: {"outputs": (replace(s.outputs[0], shape=(1, ROWS, 7)),)}, "outputs: found"),
        (lambda s: {"outputs": (replace(s.outputs[0], name="other"),)}, "outputs: found"),
        (lambda s: {"states": (replace(s.states[0], shape=(1, ROWS, 7)),)}, "inputs: found"),
        (lambda s: {"states": (*s.states, replace(s.states[0], name="other"))}, "inputs: found"),
    ],
)
def test_a_changed_interface_is_found(
    assets: dict[str, Path], graph: Graph, change: Any, message: str
) -> None:
    if callable(change):
        change = {"signature": replace(graph.first.signature, **change(graph.first.signature))}
    changed = replace(graph, components=(replace(graph.first, **change), graph.components[1]))
    with pytest.raises(ExportError, match=message):
        check_package(assets["float32"], changed, "float32")


def flip(data: bytes) -> bytes:
    return data[:500] + bytes([data[500] ^ 1]) + data[501:]


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (PROGRAM, flip, "main.hash: found"),
        (PROGRAM, lambda data: data[: len(data) // 2], "main.hash: found"),
        (PROGRAM, lambda data: b"", "main.hash: found"),
        (HASH, lambda data: data[1:] + data[:1], "main.hash: found"),
        (METADATA, lambda data: b"{", "cannot be read back: JSONDecodeError"),
        (
            METADATA,
            lambda data: json.dumps(json.loads(data) | {"creationDate": 1}).encode(),
            "metadata.json: found",
        ),
    ],
)
def test_a_damaged_asset_is_a_one_line_error(
    asset: Path, graph: Graph, file: str, damage: Callable[[bytes], bytes], message: str
) -> None:
    (asset / file).write_bytes(damage((asset / file).read_bytes()))
    with pytest.raises(ExportError, match=f"^layers.aimodel: [^\n]*{message}[^\n]*$"):
        check_package(asset, graph, "float32")


@pytest.mark.parametrize("file", [PROGRAM, HASH, METADATA])
def test_an_incomplete_asset_is_a_one_line_error(asset: Path, graph: Graph, file: str) -> None:
    (asset / file).unlink()
    with pytest.raises(ExportError, match=r"^layers.aimodel: cannot be read back: FileNotFoundError[^\n]*$"):
        check_package(asset, graph, "float32")


def test_an_operator_that_core_ai_does_not_have_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"^layers: Core AI export failed: [^\n]*fft[^\n]*$"):
        lower_graph(layers_graph(refused=True), tmp_path / "layers.aimodel", "float32")
    assert not list(tmp_path.iterdir())
