"""Graphs that an export never writes are refused before a session is made."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.stand_ins import stand_in

from voxport.bundle.errors import IntegrityError
from voxport.bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from voxport.runtime.engines.onnx_graph import check_graph, check_session
from voxport.runtime.engines.ort import ort

FLOATS = TensorProto.FLOAT
X, Y = (helper.make_tensor_value_info(name, FLOATS, ["B", 4]) for name in "xy")


def write(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> Path:
    graph = helper.make_graph(nodes, "g", [X], [Y], initializer=initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10), path)
    return path


def body() -> onnx.GraphProto:
    return helper.make_graph([helper.make_node("Relu", ["x"], ["z"])], "body", [], [Y])


def external(location: str) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


RELU = helper.make_node("Relu", ["x"], ["y"])


def test_a_plain_graph_and_listed_weights_are_accepted(tmp_path: Path) -> None:
    check_graph(write(tmp_path / "a.onnx", [RELU], [external("a.onnx.data")]), {"a.onnx.data"})


@pytest.mark.parametrize(
    "nodes, initializers, named",
    [
        ([helper.make_node("Loop", ["", "x"], ["y"], body=body())], (), "control flow"),
        ([helper.make_node("If", ["x"], ["y"], then_branch=body(), else_branch=body())], (), "control flow"),
        ([helper.make_node("Own", ["x"], ["y"], domain="own", inner=body())], (), "control flow"),
        ([RELU], [external("../secret")], "does not list '../secret'"),
        ([RELU], [external("/etc/passwd")], "does not list '/etc/passwd'"),
    ],
)
def test_what_no_export_has_is_refused(
    tmp_path: Path, nodes: list[onnx.NodeProto], initializers: Sequence[onnx.TensorProto], named: str
) -> None:
    with pytest.raises(IntegrityError, match=f"a.onnx: .*{named}"):
        check_graph(write(tmp_path / "a.onnx", nodes, initializers), {"a.onnx.data"})


def test_functions_are_refused(tmp_path: Path) -> None:
    function = helper.make_function("own", "Own", ["x"], ["y"], [RELU], [helper.make_opsetid("", 21)])
    path = write(tmp_path / "a.onnx", [helper.make_node("Own", ["x"], ["y"], domain="own")], (), [function])
    with pytest.raises(IntegrityError, match="functions"):
        check_graph(path, ())


def test_weights_of_an_attribute_are_in_the_graph(tmp_path: Path) -> None:
    node = helper.make_node("Constant", [], ["y"], value=external("a.onnx.data"))
    with pytest.raises(IntegrityError, match="attribute of a node is in another file"):
        check_graph(write(tmp_path / "a.onnx", [node]), {"a.onnx.data"})


def test_a_number_of_a_field_in_another_form_is_refused(tmp_path: Path) -> None:
    """Field 7, the graph, with one more byte and with a bit that 32 bits do not hold: protobuf reads both."""
    content = write(tmp_path / "a.onnx", [RELU]).read_bytes()
    place = content.index(b"\x3a")
    for tag in (b"\xba\x00", b"\xba\x80\x80\x80\x10", b"\x02"):
        (tmp_path / "a.onnx").write_bytes(content[:place] + tag + content[place + 1 :])
        with pytest.raises(IntegrityError, match="number of a field"):
            check_graph(tmp_path / "a.onnx", ())


@pytest.mark.parametrize("content", [b"\x3a\xff", b"\x3a" + b"\xff" * 20, b"\x0b", b"\x3a\x02\x0a\x7f"])
def test_damaged_messages_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"a\.onnx"):
        check_graph(tmp_path / "a.onnx", ())


def entry(
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = (("x", (1, 4)),),
    outputs: tuple[tuple[str, tuple[int, int]]] = (("y", (1, 4)),),
    states: tuple[StateSpec, ...] = (),
) -> Any:
    tensors = [
        tuple(TensorSpec(name, "float32", shape, Kind.HIDDEN) for name, shape in part)
        for part in (inputs, outputs)
    ]
    return stand_in(name="step", signature=Signature(tensors[0], tensors[1], states))


CACHE = StateSpec("cache", "float32", (1, 4, 1, 8), CacheSpec("BSHD"))


@pytest.mark.parametrize(
    "wrong",
    [
        entry(inputs=(("x", (1, 5)),)),
        entry(inputs=(("x", (1, 4, 1)),)),
        entry(inputs=(("x", ()),)),
        entry(inputs=(("z", (1, 4)),)),
        entry(inputs=()),
        entry(inputs=(("x", (1, 4)), ("more", (1, 4)))),
        entry(outputs=(("y", (1, 3)),)),
        entry(outputs=(("w", (1, 4)),)),
        entry(states=(CACHE,)),
    ],
)
def test_a_manifest_that_does_not_describe_the_graph_is_refused(tmp_path: Path, wrong: Any) -> None:
    path = write(tmp_path / "a.onnx", [RELU])
    session = ort.InferenceSession(path)
    check_session(session, path, [entry()])
    with pytest.raises(IntegrityError, match="the manifest says"):
        check_session(session, path, [entry(), wrong])
