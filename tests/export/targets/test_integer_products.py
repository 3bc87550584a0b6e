"""The product of 8-bit integers in ONNX graphs is exact on every processor, and computes each row alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
import pytest
import torch
from support.export.rounding import float32_bar

from voxport.export.targets.onnx.kernels import TRANSLATIONS, lower_linear
from voxport.export.targets.onnx.lowering import OPSET, pack_weights
from voxport.export.targets.onnx.read_back import FloatActivationsEngine
from voxport.quantize.modules import QuantizedLinear, float_activations, int8_per_block, linear_kernel
from voxport.quantize.schemes import IntegerScheme
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.engines.onnx import OnnxEngine, ort

COLUMNS, CHANNELS = 96, 9000  # the exporter folds operators on constants of up to 8192 bytes


@pytest.fixture(scope="module")
def linear() -> QuantizedLinear:
    """The first channels have the largest integers of each sign."""
    noise = torch.Generator().manual_seed(0)
    integers = torch.randint(-127, 128, (CHANNELS, COLUMNS), generator=noise, dtype=torch.int8)
    integers[0], integers[1] = 127, -127
    return QuantizedLinear(integers, torch.rand(CHANNELS, 1, generator=noise), IntegerScheme(8))


@pytest.fixture(scope="module")
def sessions(linear: QuantizedLinear, tmp_path_factory: pytest.TempPathFactory) -> list[ort.InferenceSession]:
    """Sessions of the engine, and of the engine with float activations."""
    return open_sessions(linear, tmp_path_factory.mktemp("product"), "MatMulIntegerToFloat")


def open_sessions(linear: QuantizedLinear, folder: Path, operator: str) -> list[ort.InferenceSession]:
    """The linear becomes one node of this operator, with its integers and scales as constants."""
    with linear_kernel(linear, lower_linear):
        shapes = ({0: torch.export.Dim("B")},)
        program = torch.export.export(linear, (torch.rand(3, COLUMNS),), dynamic_shapes=shapes)
        converted: Any = torch.onnx.export(
            program, dynamo=True, opset_version=OPSET, custom_translation_table=TRANSLATIONS, verbose=False
        )
    pack_weights(converted.model)
    ir.save(converted.model, folder / "product.onnx")
    (product,) = (node for node in converted.model.graph if node.op_type == operator)
    places = (1, 3) if operator == "MatMulIntegerToFloat" else (1,)
    assert all(product.inputs[place].is_initializer() for place in places)
    job, files = SimpleNamespace(compute_precision="float32"), {"product.onnx.data": None}
    manifest = SimpleNamespace(files=files)
    bundle: Any = SimpleNamespace(folder=folder, job=job, manifest=manifest, components=())
    engines = (OnnxEngine(bundle, EngineOptions()), FloatActivationsEngine(bundle, EngineOptions()))
    return [engine.session("product.onnx") for engine in engines]


def run(session: ort.InferenceSession, x: torch.Tensor) -> torch.Tensor:
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return torch.from_numpy(y)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative to the largest value of a row."""
    return float(((found - expected).abs().amax(1) / expected.abs().amax(1)).max())


@pytest.fixture
def x() -> torch.Tensor:
    noise = torch.Generator().manual_seed(1)
    return torch.randn(3, COLUMNS, generator=noise) * torch.tensor([[1e-3], [1], [1e3]])


def test_the_largest_integers_do_not_saturate(sessions: list[Any], linear: QuantizedLinear) -> None:
    """Rows of +-1 are rounded to +-127. float32 has every sum of these integers, times two scales."""
    x = torch.ones(3, COLUMNS) * torch.tensor([[1.0], [-1.0], [3.0]])
    sums = torch.sign(x).long() * 127 @ linear.weight.long().T
    expected = sums.float() * linear.scale.T * (x.abs().amax(1, keepdim=True) / 127)
    assert torch.equal(run(sessions[0], x), expected)


def test_a_row_does_not_depend_on_the_others(sessions: list[Any], x: torch.Tensor) -> None:
    together = run(sessions[0], x)
    assert torch.equal(together, torch.cat([run(sessions[0], row) for row in x.split(1)]))


def test_both_kinds_of_activations_equal_those_of_eager(
    sessions: list[Any], linear: QuantizedLinear, x: torch.Tensor
) -> None:
    for session, kernel in zip(sessions, (int8_per_block, float_activations), strict=True):
        assert error(run(session, x), kernel(x, linear)) < float32_bar(1, COLUMNS)
        zeros = torch.zeros(1, COLUMNS)
        assert torch.equal(run(session, zeros), torch.zeros(1, CHANNELS))  # not NaN


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 32)])
def test_a_scheme_with_float_activations_does_not_round_them(
    bits: int, group: int | None, x: torch.Tensor, tmp_path: Path
) -> None:
    """One value a hundred times as large: integers would lose the others."""
    scheme = IntegerScheme(bits, group, activations="float")
    weight = torch.randn(CHANNELS, COLUMNS, generator=torch.Generator().manual_seed(2))
    module = scheme.quantize(weight, "", False).module
    assert isinstance(module, QuantizedLinear)
    x = torch.cat((100 * x[:, :1], x[:, 1:]), dim=1)
    found = run(open_sessions(module, tmp_path, "MatMulNBits")[0], x)
    assert error(found, float_activations(x, module)) < float32_bar(1, COLUMNS)
    assert torch.equal(int8_per_block(x, module), float_activations(x, module))
    rounded = QuantizedLinear(module.integers(), module.scale, IntegerScheme(bits, group))
    assert error(int8_per_block(x, rounded), float_activations(x, module)) > 10 * float32_bar(1, COLUMNS)
