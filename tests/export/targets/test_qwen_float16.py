"""The code predictor of Qwen3-TTS in bundles of half precision: values beyond its range."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from voxport.bundle.manifest import ExportRequest
from voxport.bundle.spec import ONNX_PAST, ONNX_PRESENT, LayoutName
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets.base import Graph
from voxport.export.targets.coreml.target import CoreMLTarget
from voxport.export.targets.onnx.kernels import FLOAT_ACTIVATIONS
from voxport.export.targets.onnx.target import OnnxTarget
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.runtime.engines.onnx import ort
from voxport.runtime.mil import Executor, Package

NAME = "code_predictor"
WIDE = 2.0**18  # values of about 1 become larger than 65504
BAR = 1e-4  # relative to the largest value, in float32


def predictor_of(layout: LayoutName, quant: str = "none") -> Graph:
    """The feed-forward blocks compute the same as before; their inner values are `WIDE` times as large."""
    request = ExportRequest(quant=quant, cache_length=64)
    graph = Model(resolve(Source(random_checkpoint("qwen3_tts")), request), layout, "float16").graph(NAME)
    module: Any = graph.module
    for block in module.blocks:
        up_and_gate, down = block.mlp.w13, block.mlp.w2
        if quant == "none":
            up_and_gate.weight.data[len(up_and_gate.weight) // 2 :] *= WIDE
            down.weight.data /= WIDE
        else:
            up_and_gate.scale[len(up_and_gate.scale) // 2 :] *= WIDE
            down.scale /= WIDE
    return graph


def expected_logits(predictor: Graph) -> np.ndarray:
    """Logits of eager."""
    with torch.no_grad():
        values = predictor.first.example(0).values()
        found: np.ndarray = predictor.module(*(torch.from_numpy(array) for array in values))[1].numpy()
        return found


def is_near(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() < BAR * np.abs(expected).max())


@pytest.fixture(scope="module")
def predictor() -> Graph:
    return predictor_of("BHSD")


def coreml_logits(predictor: Graph, folder: Path) -> np.ndarray:
    """Logits of the package in `folder`."""
    executor = Executor(Package(folder / f"{NAME}.mlpackage").function(NAME), "float16")
    given = {
        name: array.astype(np.int32) if array.dtype == np.int64 else array
        for name, array in predictor.first.example(0).items()
    }
    with np.errstate(all="ignore"):  # overflow is what is tested
        return executor.run(given, executor.new_states())["logits"]


@pytest.mark.slow
def test_core_ml_keeps_the_predictor_in_float32(predictor: Graph, tmp_path: Path) -> None:
    target = CoreMLTarget()
    target.lower(predictor, tmp_path)
    target.check(predictor, tmp_path)
    assert is_near(coreml_logits(predictor, tmp_path), expected_logits(predictor))


def onnx_logits(predictor: Graph, folder: Path) -> np.ndarray:
    """Logits of the graph in `folder`, lowered for bundles in half precision."""
    target = OnnxTarget("float16")
    target.lower(predictor, folder)
    target.check(predictor, folder)
    session = ort.InferenceSession(folder / f"{NAME}.onnx")
    found: np.ndarray = session.run(["logits"], predictor.first.example(0))[0]
    return found


@pytest.mark.slow
def test_onnx_keeps_the_predictor_in_float32(tmp_path: Path) -> None:
    """Its products of quantised weights have float activations, as in the other graphs of such a bundle."""
    predictor = predictor_of("BHSD, staged", "w8")
    assert is_near(onnx_logits(predictor, tmp_path), expected_logits(predictor))
    model = onnx.load(tmp_path / f"{NAME}.onnx", load_external_data=False)
    levels = {
        attribute.i
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.name == "accuracy_level"
    }
    assert levels == {FLOAT_ACTIVATIONS}


@pytest.mark.slow
def test_in_half_precision_onnx_loses_the_values(tmp_path: Path) -> None:
    in_float16 = replace(predictor_of("BHSD, staged"), exceeds_float16=False)
    with np.errstate(all="ignore"):
        found = onnx_logits(in_float16, tmp_path)
    assert not is_near(found, expected_logits(in_float16))


def test_states_of_a_float32_graph_are_in_half_precision(tmp_path: Path) -> None:
    """Those of the six-model layout, as a bundle in half precision declares them."""
    request = ExportRequest(options={"split": "six"}, cache_length=64)
    model = Model(resolve(Source(random_checkpoint("qwen3_tts")), request), "BHSD, staged", "float16")
    graph = model.graph("MultiCodeDecoder")
    OnnxTarget("float16").lower(graph, tmp_path)
    lowered = onnx.load(tmp_path / "MultiCodeDecoder.onnx", load_external_data=False).graph
    float16_states = {
        value.name
        for value in (*lowered.input, *lowered.output)
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    }
    names = [state.name for state in graph.first.signature.states]
    assert names and float16_states == {
        f"{side}{name}" for side in (ONNX_PAST, ONNX_PRESENT) for name in names
    }
    component, engine = graph.first, ort.InferenceSession(tmp_path / "MultiCodeDecoder.onnx")
    states = {state.name: np.zeros(state.shape, np.float32) for state in component.signature.states}
    inputs = component.example(0)
    past = {f"{ONNX_PAST}{name}": array.astype(np.float16) for name, array in states.items()}
    found = engine.run([component.signature.outputs[0].name], {**inputs, **past})[0]
    with torch.no_grad():
        arrays = (*inputs.values(), *states.values())
        expected = graph.module(*(torch.from_numpy(array) for array in arrays))[0].numpy()
    assert is_near(found, expected)
