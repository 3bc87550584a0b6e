"""A graph that is not what the manifest says is refused."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from support.stand_ins import stand_in

from voxport.bundle.errors import IntegrityError
from voxport.bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from voxport.runtime.engines.onnx import check_session
from voxport.runtime.engines.ort import ort

FLOATS = TensorProto.FLOAT
X, Y = (helper.make_tensor_value_info(name, FLOATS, ["B", 4]) for name in "xy")


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
    path = tmp_path / "a.onnx"
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [X], [Y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    session = ort.InferenceSession(path)
    check_session(session, path, [entry()])
    with pytest.raises(IntegrityError, match="the manifest says"):
        check_session(session, path, [entry(), wrong])
