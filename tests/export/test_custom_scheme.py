"""A scheme that only this test registers: 6-bit integers in groups, exported to every target."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bundle.bundle import Bundle
from bundle.manifest import ExportRequest
from export.__main__ import main as export
from export.model import Model
from export.resolve import resolve
from export.source import Source
from export.targets import open_target
from export.targets.coreml.target import CoreMLTarget
from quantize.module import QuantizedModule, QuantizedWeight, SquaredErrors
from quantize.recipe import RECIPES, Recipe
from quantize.schemes import SCHEMES, IntegerScheme, Scheme, Storage, scheme_from_dict
from runtime.mil import Executor, Package

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Int6Scheme(Scheme):
    type: ClassVar[str] = "int6"

    bits: int = 6
    group: int = 32

    def quantize(self, weight: torch.Tensor, path: str, is_table: bool) -> QuantizedWeight:
        self.check_shape(path, weight.shape, is_table)
        groups = weight.float().unflatten(1, (-1, self.group))
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=2.0**-14) / 31
        integers = torch.round(groups / scale)
        error = float((groups - integers * scale).square().sum())
        errors = SquaredErrors(error, error, float(groups.square().sum()))
        return QuantizedWeight(Int6Linear(integers.to(torch.int8), scale, self), errors)

    def misfit(self, shape: Sequence[int], is_table: bool) -> str | None:
        return (
            f"groups of {self.group} do not divide the {shape[1]} inputs" if shape[1] % self.group else None
        )

    def storage(self, shape: Sequence[int]) -> Storage:
        size = prod(shape) * (1 + 4 / self.group)
        return Storage(size, size, size)

    def describe(self) -> str:
        return f"int6, groups of {self.group}"


class Int6Linear(QuantizedModule):
    """weight int8 [N, K / group, group], scale float32 [N, K / group, 1], in plain torch."""

    scale: torch.Tensor

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor, scheme: Int6Scheme):
        super().__init__(scheme)
        self.register_buffer("weight", integers)
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, (self.weight * self.scale).flatten(1), self.bias)


@pytest.fixture(autouse=True)
def registered(monkeypatch) -> None:
    monkeypatch.setitem(SCHEMES, Int6Scheme.type, Int6Scheme)
    monkeypatch.setitem(RECIPES, "int6", Recipe("int6", linears=Int6Scheme(), tables=IntegerScheme(8)))


def test_a_custom_scheme_gives_a_verified_bundle_and_its_recipe_is_read_back(checkpoint, tmp_path):
    out = tmp_path / "int6"
    assert export(["--target", "onnx", "--quant", "int6", "--cache-length", "1024", "--out", str(out)]) == 0
    bundle, source = Bundle(out), Source(checkpoint)
    assert bundle.is_verified
    backbone = bundle.component("decode_step")
    assert backbone.recipe == "int6" and 0.001 < bundle.manifest.weight_errors["backbone"].searched < 0.05
    recipe = resolve(source, bundle.job.request).recipes["backbone"]
    assert recipe.linears == scheme_from_dict(bundle.job.recipes["backbone"].linears.model_dump())


@pytest.mark.parametrize("target", ["executorch", "coreml"])
def test_other_targets_equal_the_module_of_a_custom_scheme(checkpoint, target, tmp_path):
    lowering = open_target(target)
    request = ExportRequest(quant="int6", cache_length=64)
    model = Model(resolve(Source(checkpoint), request), lowering.layout, lowering.compute_precision)
    graph = model.graph("acoustic_step")
    assert any(isinstance(part, Int6Linear) for part in graph.module.modules())
    lowering.lower(graph, tmp_path)
    lowering.check(graph, tmp_path)
    inputs = graph.first.example(0)
    with torch.no_grad():
        expected = graph.module(*map(torch.from_numpy, inputs.values()))
    found = {"executorch": run_program, "coreml": run_package}[target](tmp_path, inputs)
    for output, wanted in zip(found, expected, strict=True):
        assert np.abs(output - wanted.numpy()).max() <= 1e-3 * float(wanted.abs().max())


def run_program(folder: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(folder / "acoustic_step.pte")
    method = program.load_method("acoustic_step")
    return [tensor.numpy() for tensor in method.execute([torch.from_numpy(a) for a in inputs.values()])]


def run_package(folder: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    function = Package(folder / "acoustic_step.mlpackage").function("acoustic_step")
    given = {
        name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in inputs.items()
    }
    return list(Executor(function, "float32").run(given).values())


def test_an_unsupported_shape_is_named_with_a_rule_as_remedy(capsys, monkeypatch):
    recipe = Recipe("int6", linears=Int6Scheme(group=128), tables=IntegerScheme(8))
    monkeypatch.setitem(RECIPES, "int6", recipe)
    assert export(["--target", "onnx", "--quant", "int6", "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert "groups of 128 do not divide the 96 inputs of layers.0.attention.wq" in error
    assert "'*attention.wq=none'" in error


def test_a_target_without_native_support_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(Int6Scheme, "needs_native_support", True)
    monkeypatch.setattr(CoreMLTarget, "native_schemes", frozenset({"int6"}))
    assert export(["--target", "onnx", "--quant", "int6", "--dry-run"]) == 2
    assert "onnx cannot store int6 weights, only coreml can" in capsys.readouterr().err
