"""Convolutions of graphs: two axes in ONNX, parts for XNNPACK in ExecuTorch, and the same values.

Weights and inputs of ONNX graphs are small integers, so float32 has every sum, in any order.
"""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from executorch.exir import to_edge
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from voxport.export.targets.executorch.lowering import ConvolutionPartitioner, _keep_convolution_weights
from voxport.export.targets.onnx.rewrites import widen_convolutions
from voxport.runtime.engines.onnx import ort

CHANNELS = 16  # a multiple of 16, for which ONNX Runtime has direct kernels
SETTINGS = [
    {},
    {"dilations": [3]},
    {"strides": [2]},
    {"pads": [2, 1]},
    {"strides": [3], "pads": [1, 4], "dilations": [2], "kernel_shape": [4]},
]


def two_convolutions(attributes: dict[str, Any], groups: int) -> ir.Model:
    """Both have the same weight. The second one is an output of the graph."""
    weight = np.random.default_rng(0).integers(-4, 5, (CHANNELS, CHANNELS // groups, 4)).astype(np.float32)
    bias = np.arange(CHANNELS, dtype=np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["h"], name="first", group=groups, **attributes),
        helper.make_node("Add", ["h", "h"], ["g"], name="sum"),
        helper.make_node("Conv", ["g", "w"], ["y"], name="second", group=groups, **attributes),
    ]
    value = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, CHANNELS, f"{name}T"]) for name in "xy"
    ]
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph(nodes, "convolutions", value[:1], value[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    return ir.from_proto(model)


def run(model: ir.Model) -> np.ndarray:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    x = np.random.default_rng(1).integers(-8, 9, (1, CHANNELS, 60)).astype(np.float32)
    (y,) = ort.InferenceSession(proto.SerializeToString()).run(["y"], {"x": x})
    return np.asarray(y)


@pytest.mark.parametrize("groups", [1, CHANNELS])
@pytest.mark.parametrize("attributes", SETTINGS)
def test_both_shapes_give_the_same_values(attributes: dict[str, list[int]], groups: int) -> None:
    model = two_convolutions(attributes, groups)
    expected = run(model)
    widen_convolutions(model)
    graph: Any = model.graph
    assert [len(node.inputs[1].shape) for node in graph if node.op_type == "Conv"] == [4, 4]
    np.testing.assert_array_equal(run(model), expected)


def test_a_graph_without_convolutions_is_left_alone() -> None:
    model = two_convolutions({}, 1)
    for node in list(model.graph)[::-1]:
        if node.op_type == "Conv":
            node.op_type = "Identity"
    before = [node.op_type for node in model.graph]
    widen_convolutions(model)
    assert [node.op_type for node in model.graph] == before
    assert "convolution.axes" not in model.graph.initializers


class Convolutions(nn.Module):
    """A dilated convolution, a depthwise one, a strided one, and one with weights outside the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.dilated, self.depthwise = nn.Conv1d(4, 6, 3, dilation=2), nn.Conv1d(6, 6, 3, groups=6)
        self.strided = nn.Conv1d(6, 8, 4, stride=2)
        self.taps = nn.Buffer(torch.randn(4, 8, 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(self.strided(self.depthwise(self.dilated(x)).sin()), self.taps)


def test_all_convolutions_are_parts_and_compute_the_same() -> None:
    torch.manual_seed(0)
    module, x = Convolutions(), torch.randn(1, 4, 40)
    axes = {2: torch.export.Dim("columns", min=16, max=64)}
    program = torch.export.export(module, (x,), dynamic_shapes=(axes,))
    _keep_convolution_weights(program)
    edge = to_edge(program).to_backend(ConvolutionPartitioner())
    calls = [str(node.target) for node in edge.exported_program().graph.nodes]
    assert not [call for call in calls if "convolution" in call]
    content = edge.to_executorch().buffer  # which the loaded program reads
    loaded = _load_for_executorch_from_buffer(content)
    for columns in (16, 40, 64):
        x = torch.randn(1, 4, columns)
        torch.testing.assert_close(loaded.forward((x,))[0], module(x))
