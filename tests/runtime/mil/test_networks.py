"""Networks that coremltools converts compute the same with compressed weights, and keep their states."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from voxport.runtime.mil import CallError, Executor, Package, executor

logging.getLogger("coremltools").setLevel(logging.ERROR)
ct = pytest.importorskip("coremltools")
import coremltools.optimize as cto  # noqa: E402

COMPRESSED = ("int8", "int4", "palettised")


class TransformerBlock(nn.Module):
    shape = (2, 6, 32)

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.reshape(2, 6, 4, 8).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        x = x + self.out(
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(2, 6, 32)
        )
        found: torch.Tensor = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return found


class Counter(nn.Module):
    """Accumulates its inputs in a state and returns a linear function of the sum."""

    shape = (1, 32)
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 16)
        self.register_buffer("total", torch.zeros(1, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        found: torch.Tensor = self.head(self.total)
        return found


NETWORKS = (TransformerBlock, Counter)


def convert(network: Any) -> Any:
    """A model in half precision."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return ct.convert(
            _program(network),
            inputs=[ct.TensorType("x", network.shape, np.float32)],
            outputs=[ct.TensorType("y", dtype=np.float32)],
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT16,
            skip_model_load=True,
        )


def compress(model: Any, form: str) -> Any:
    """A copy of a model in `fp16` with compressed weights."""
    if form == "palettised":
        config = cto.coreml.OpPalettizerConfig(
            mode="uniform", nbits=4, granularity="per_grouped_channel", group_size=8, weight_threshold=0
        )
        return cto.coreml.palettize_weights(model, cto.coreml.OptimizationConfig(config))
    granularity = {"granularity": "per_block", "block_size": 16} if form == "int4" else {}
    config = cto.coreml.OpLinearQuantizerConfig(
        mode="linear_symmetric", dtype=form, weight_threshold=0, **granularity
    )
    return cto.coreml.linear_quantize_weights(model, cto.coreml.OptimizationConfig(config))


def _program(network: Any) -> Any:
    """A traced network, or an exported program if it has a state, which needs half precision throughout."""
    x = torch.zeros(network.shape)
    if isinstance(network, Counter):
        return torch.export.export(network, (x,)).run_decompositions({})
    return torch.jit.trace(network, x)


@pytest.fixture(scope="module", params=NETWORKS, ids=lambda network: network.__name__)
def network(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    found: nn.Module = request.param().eval()
    return found


@pytest.fixture(scope="module")
def float16_model(network: Any) -> Any:
    """The network, from which its compressed forms are made."""
    return convert(network)


@pytest.mark.parametrize("form", COMPRESSED)
def test_compressed_weights_are_those_that_coremltools_decompresses(
    float16_model: Any, form: str, tmp_path: Path
) -> None:
    compressed = compress(float16_model, form)
    compressed.save(str(tmp_path / "compressed.mlpackage"))
    cto.coreml.decompress_weights(compressed).save(str(tmp_path / "plain.mlpackage"))
    functions = [Package(tmp_path / f"{name}.mlpackage").function() for name in ("compressed", "plain")]
    kinds = [{op.type.partition("_")[0] for op in function.operations} for function in functions]
    assert ["constexpr" in kind for kind in kinds] == [True, False]
    executors = [Executor(function) for function in functions]
    x = np.random.default_rng(0).standard_normal(functions[0].inputs["x"].fixed or (), dtype=np.float32)
    found, expected = (executor.run({"x": x}, executor.new_states())["y"] for executor in executors)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("network", [TransformerBlock], indirect=True, ids=["TransformerBlock"])
@pytest.mark.parametrize("form", COMPRESSED)
def test_weights_above_the_memory_limit_are_decompressed_at_each_use(
    network: Any,
    float16_model: Any,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "network.mlpackage"
    compress(float16_model, form).save(str(path))
    x = np.random.default_rng(0).standard_normal(network.shape, dtype=np.float32)
    held = Executor(Package(path).function())
    monkeypatch.setattr(executor, "MAX_DECOMPRESSED", 0)
    monkeypatch.setattr(executor, "LARGE_WEIGHT", 0)
    large = Executor(Package(path).function())
    weights = {
        named.name
        for op in large.function.operations
        if op.type.startswith("constexpr_")
        for named in op.outputs
    }
    assert weights and weights <= held._constants.keys() and not weights & large._constants.keys()
    for _ in range(2):
        np.testing.assert_array_equal(large.run({"x": x})["y"], held.run({"x": x})["y"])


def test_the_caller_owns_states_and_invalid_calls_raise(tmp_path: Path) -> None:
    convert(Counter()).save(str(tmp_path / "counter.mlpackage"))
    executor = Executor(Package(tmp_path / "counter.mlpackage").function())
    first, second, one = executor.new_states(), executor.new_states(), np.ones((1, 32), np.float32)
    executor.run({"x": one}, first)
    executor.run({"x": one}, first)
    executor.run({"x": -one}, second)
    assert (
        (first["total"] == 2).all() and (second["total"] == -1).all() and first["total"].dtype == np.float16
    )
    for inputs, states, message in (
        ({}, first, "input x is missing"),
        ({"x": one, "z": one}, first, "input z is unknown"),
        ({"x": one[:, :5]}, first, r"float32\[1, 5\], expected fp32\[1, 32\]"),
        ({"x": one.astype(np.float64)}, first, "float64"),
        ({"x": one}, {}, "state total is missing"),
        ({"x": one}, {"total": np.zeros((1, 31), np.float16)}, "state total"),
    ):
        with pytest.raises(CallError, match=message):
            executor.run(inputs, states)
    with pytest.raises(CallError, match="no function 'other'; expected one of main"):
        Package(tmp_path / "counter.mlpackage").function("other")
    with pytest.raises(CallError, match="precision 'float8'"):
        Executor(Package(tmp_path / "counter.mlpackage").function(), "float8")
