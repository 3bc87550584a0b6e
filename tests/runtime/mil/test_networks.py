"""Networks that coremltools converts, in five weight formats, equal PyTorch with the same weights."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.export.rounding import float16_bar, float32_bar
from torch import nn

from voxport.runtime.mil import CallError, Executor, Package, executor

logging.getLogger("coremltools").setLevel(logging.ERROR)
ct = pytest.importorskip("coremltools")
import coremltools.optimize as cto  # noqa: E402
from coremltools.converters.mil.frontend.milproto.load import load as load_program  # noqa: E402

EXACT = float32_bar(sums=5, products=144)  # 3.7e-6
FLOAT16 = float16_bar(30)  # 6.2e-3
FORMS = ("fp32", "fp16", "int8", "int4", "palettised")


class MLP(nn.Module):
    shape = (3, 32)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


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


class GatedLoop(nn.Module):
    shape = (2, 5, 32)

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.candidate = nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(2, 32)
        for step in range(5):
            update, reset = torch.sigmoid(self.gates(torch.cat((x[:, step], h), -1))).chunk(2, -1)
            h = update * h + (1 - update) * torch.tanh(self.candidate(torch.cat((x[:, step], reset * h), -1)))
        return h


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


NETWORKS = (MLP, TransformerBlock, GatedLoop, Counter)


def convert(network: Any, form: str) -> Any:
    """A model in `fp32` or `fp16`."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return ct.convert(
            _program(network),
            inputs=[ct.TensorType("x", network.shape, np.float32)],
            outputs=[ct.TensorType("y", dtype=np.float32)],
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT32 if form == "fp32" else ct.precision.FLOAT16,
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
    """A traced network, or an exported program if it has a state.

    For a traced network with a state, the converter needs half precision throughout.
    """
    x = torch.zeros(network.shape)
    return (
        torch.export.export(network, (x,)).run_decompositions({})
        if isinstance(network, Counter)
        else torch.jit.trace(network, x)
    )


def take_weights(network: Any, path: Path) -> int:
    """Copies the compressed weights of a package into the network, and returns their number.

    coremltools reads the weights; this module decompresses them.
    """
    spec = ct.utils.load_spec(str(path))
    program = load_program(spec, spec.specificationVersion, str(path / "Data/com.apple.CoreML/weights"))
    held = [
        _decompressed(op)
        for op in program.functions["main"].operations
        if op.op_type.startswith("constexpr_")
    ]
    for array in held:
        same = [weight for weight in network.parameters() if weight.shape == array.shape]
        if not array.any():  # the initial value of the loop
            continue
        closest = min(same, key=lambda weight: float((weight - array).norm()))
        # 16 levels per row or group: an error of at most a tenth. Another weight would differ by 1.4.
        assert float((closest - array).norm()) <= 0.15 * float(closest.norm())
        closest.data = array
    return len(held)


def _decompressed(op: Any) -> torch.Tensor:
    if op.op_type == "constexpr_lut_to_dense":
        return torch.from_numpy(op.materialized_val_inference()).float()  # a lookup, without arithmetic
    assert op.op_type == "constexpr_blockwise_shift_scale" and op.offset is None
    data, scale = (
        torch.from_numpy(np.array(op.data.val).astype(np.float32)),
        torch.from_numpy(np.array(op.scale.val)).float(),
    )
    for axis, (size, count) in enumerate(zip(data.shape, scale.shape, strict=True)):
        scale = scale.repeat_interleave(size // count, axis)
    return data * scale


@pytest.fixture(scope="module", params=NETWORKS, ids=lambda network: network.__name__)
def network(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    found: nn.Module = request.param().eval()
    return found


@pytest.fixture(scope="module")
def float16_model(network: Any) -> Any:
    """The network in half precision, which its compressed forms are made of."""
    return convert(network, "fp16")


@pytest.mark.parametrize("form", FORMS)
def test_a_converted_network_equals_torch(
    network: Any, float16_model: Any, form: str, tmp_path: Path
) -> None:
    path = tmp_path / "network.mlpackage"
    model = convert(network, form) if form == "fp32" else float16_model
    (model if form in ("fp32", "fp16") else compress(model, form)).save(str(path))
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    function = Package(path).function()
    found = {precision: Executor(function, precision) for precision in ("float32", "float16")}
    states = {precision: executor.new_states() for precision, executor in found.items()}
    try:
        if form != "fp32":
            for tensor in (*network.parameters(), *network.buffers()):
                tensor.data = tensor.data.half().to(tensor.dtype)
        compressed = take_weights(network, path)
        assert (compressed > 0) == (form not in ("fp32", "fp16"))
        if isinstance(network, Counter):
            network.total.zero_()
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal(network.shape, dtype=np.float32)
            with torch.no_grad():
                expected = network(torch.from_numpy(x)).numpy()
            for precision, bar in (("float32", EXACT), ("float16", FLOAT16)):
                y = found[precision].run({"x": x}, states[precision])["y"]
                assert np.abs(y - expected).max() <= bar * np.abs(expected).max(), precision
    finally:
        network.load_state_dict(weights)


@pytest.mark.parametrize("network", [TransformerBlock], indirect=True, ids=["TransformerBlock"])
@pytest.mark.parametrize("form", ["int8", "int4", "palettised"])
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
    convert(Counter(), "fp16").save(str(tmp_path / "counter.mlpackage"))
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
