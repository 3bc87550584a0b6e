"""float16 programs of Core AI: which values are rounded, and that inputs and outputs are not."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import ExportedProgram

from voxport.export.targets.coreai.half import narrow


class Normalised(nn.Module):
    """A state, a norm whose squares overflow in float16, and two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Buffer(torch.randn(8, 8)), nn.Buffer(torch.randn(4, 8))
        self.state = nn.Buffer(torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.rms_norm(x, (8,), eps=1e-6)
        hidden = F.linear(y + self.state, self.first)
        self.state.copy_(hidden)
        return F.linear(hidden, self.second), hidden


def narrowed(
    module: nn.Module, x: torch.Tensor, dynamic: dict[str, dict[int, Any]] | None = None
) -> ExportedProgram:
    traced = torch.export.export(module, (x,), dynamic_shapes=dynamic, strict=False)
    program: ExportedProgram = traced.run_decompositions()
    narrow(program, [0])
    return program


def test_only_norms_and_the_last_product_of_an_exact_output_are_float32() -> None:
    torch.manual_seed(0)
    module, x = Normalised(), torch.randn(1, 8) * 1000
    exact, hidden = module(x)
    module.state.zero_()
    program = narrowed(module, x)
    products = [node for node in program.graph.nodes if node.target is torch.ops.aten.mm.default]
    assert [node.meta["val"].dtype for node in products] == [torch.float16, torch.float32]
    types = {name: tensor.dtype for name, tensor in program.state_dict.items()}
    assert types == {"first": torch.float16, "second": torch.float32, "state": torch.float16}
    outputs = [node.name for node in program.graph.output_node().args[0]]
    assert [spec.arg.name for spec in program.graph_signature.output_specs] == outputs
    found = program.module()(x)
    for expected, result in zip((exact, hidden), found, strict=True):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-2)


def test_the_module_keeps_its_float32_weights() -> None:
    module = Normalised()
    narrowed(module, torch.randn(1, 8))
    assert {tensor.dtype for tensor in module.state_dict().values()} == {torch.float32}


def test_a_layer_norm_is_float32() -> None:
    program = narrowed(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)), torch.randn(1, 8))
    half_ones = {name for name, tensor in program.state_dict.items() if tensor.dtype == torch.float16}
    assert half_ones == {"0.weight", "0.bias"}


class Padded(nn.Module):
    """x [1, S] -> [1, S + 2], and a count of type float that no float goes into."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.pad(x, (2, 0)), torch.arange(x.shape[1]) / 2


def test_sizes_stay_dynamic() -> None:
    x = torch.randn(1, 5)
    program = narrowed(Padded(), x, {"x": {1: torch.export.Dim("S", max=64)}})
    padded, count = (node.meta["val"] for node in program.graph.output_node().args[0])
    assert not {str(padded.shape[1]), str(count.shape[0])} & {"5", "7"}
    longer = torch.randn(1, 9)
    for expected, result in zip(Padded()(longer), program.module()(longer), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)
