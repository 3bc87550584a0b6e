"""One small graph with every kind of weight that Core AI stores, and its lowering in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from voxport.bundle.manifest import Precision
from voxport.bundle.spec import Kind, Signature, StateSpec, TensorSpec
from voxport.export.targets.base import Graph
from voxport.model.graph import Component, Inputs
from voxport.quantize.schemes import IntegerScheme, PaletteScheme, Scheme

WIDTH, ROWS = 64, 4
SCHEMES: dict[str, Scheme] = {
    "first": IntegerScheme(bits=4, group=32),
    "second": IntegerScheme(bits=4, group=32),  # of the same shape
    "wide": IntegerScheme(bits=8, group=WIDTH),
    "palettes": PaletteScheme(bits=4, channels=8),
    "others": PaletteScheme(bits=4, channels=8),
}
ODD = 33
ODD_SCHEMES: tuple[tuple[int, Scheme], ...] = (
    (3, IntegerScheme(bits=4)),
    (3, IntegerScheme(bits=8)),
    (8, PaletteScheme(bits=4, channels=8)),
    (64, PaletteScheme(bits=4, channels=32)),
)


class Layers(nn.Module):
    """embeddings of ids, quantised products in turn, attention and two norms -> hidden [1, S, WIDTH], and the
    sum of all calls as a state.
    """

    def __init__(self, refused: bool):
        super().__init__()
        self.refused = refused
        generator = torch.Generator().manual_seed(0)

        def quantised(scheme: Scheme, is_table: bool = False) -> nn.Module:
            weight = torch.randn(WIDTH, WIDTH, generator=generator)
            return scheme.quantize(weight, "", is_table).module

        self.table = quantised(IntegerScheme(bits=8), is_table=True)
        self.layers = nn.ModuleDict({name: quantised(scheme) for name, scheme in SCHEMES.items()})
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.norm(self.table(ids))
        for layer in self.layers.values():
            x = x + layer(x)
        heads = x.reshape(1, ROWS, 2, WIDTH // 2).transpose(1, 2)
        x = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(1, ROWS, WIDTH)
        if self.refused:
            x = torch.fft.fft(x).abs()
        return x, total + x


def layers_graph(refused: bool = False) -> Graph:
    """Two functions of the same sizes. `refused`: with an operator that Core AI does not have."""
    signature = Signature(
        inputs=(TensorSpec("ids", "int64", (1, ROWS), Kind.INDEX),),
        outputs=(TensorSpec("hidden", "float32", (1, ROWS, WIDTH), Kind.HIDDEN),),
        states=(StateSpec("total", "float32", (1, ROWS, WIDTH)),),
    )

    def example(seed: int) -> Inputs:
        return {"ids": np.random.default_rng(seed).integers(0, WIDTH, (1, ROWS))}

    components = tuple(Component(name, "layers", signature, example) for name in ("prefill", "decode_step"))
    return Graph("layers", Layers(refused).eval(), components)


class ByLength(nn.Module):
    """x [1, S, WIDTH] -> hidden, by one of two linears of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.long, self.short = (
            IntegerScheme(bits=8).quantize(torch.randn(WIDTH, WIDTH, generator=generator), "", False).module
            for _ in range(2)
        )
        self.ignores_length = False

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.long(x) if x.shape[1] > 1 or self.ignores_length else self.short(x),)


def by_length_graph() -> tuple[Graph, ByLength]:
    """Two functions that call different linears of a module."""

    def component(name: str, rows: int) -> Component:
        shape = (1, rows, WIDTH)
        signature = Signature(
            inputs=(TensorSpec("x", "float32", shape, Kind.HIDDEN),),
            outputs=(TensorSpec("hidden", "float32", shape, Kind.HIDDEN),),
        )
        return Component(name, "by_length", signature, lambda seed: {"x": np.ones(shape, np.float32)})

    module = ByLength()
    return Graph("by_length", module, (component("prefill", ROWS), component("decode_step", 1))), module


class OddShapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = nn.ModuleList(
            scheme.quantize(torch.randn(rows, ODD, generator=generator), "", False).module
            for rows, scheme in ODD_SCHEMES
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) for layer in self.layers)


def odd_shapes_graph() -> Graph:
    """Weights with an odd number of columns, one with an odd number of values."""
    signature = Signature(
        inputs=(TensorSpec("x", "float32", (1, ODD), Kind.HIDDEN),),
        outputs=tuple(
            TensorSpec(f"y{index}", "float32", (1, rows), Kind.HIDDEN)
            for index, (rows, _) in enumerate(ODD_SCHEMES)
        ),
    )

    def example(seed: int) -> Inputs:
        return {"x": np.random.default_rng(seed).standard_normal((1, ODD), dtype=np.float32)}

    return Graph("odd", OddShapes(), (Component("odd", "odd", signature, example),))


class Subnormal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        values = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(0)) * 1e-5
        self.weight = nn.Parameter(values.half().float())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (F.linear(x, self.weight),)


def subnormal_graph() -> Graph:
    """Logits of weights that are subnormal in float16."""
    signature = Signature(
        inputs=(TensorSpec("x", "float32", (1, WIDTH), Kind.HIDDEN),),
        outputs=(TensorSpec("logits", "float32", (1, 2), Kind.LOGITS),),
    )

    def example(seed: int) -> Inputs:
        return {"x": np.random.default_rng(seed).standard_normal((1, WIDTH), dtype=np.float32)}

    return Graph("subnormal", Subnormal(), (Component("subnormal", "subnormal", signature, example),))


class Endings(nn.Module):
    """x [1, S, WIDTH] -> logits behind a product, behind a product of computed values, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(WIDTH, WIDTH), nn.Conv1d(WIDTH, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.silu(self.linear(x)).tanh(), x @ x.transpose(1, 2), self.conv(x.transpose(1, 2)).exp()


def endings_graph() -> Graph:
    shapes = {"active": (1, ROWS, WIDTH), "scores": (1, ROWS, ROWS), "convolved": (1, 8, ROWS)}
    signature = Signature(
        inputs=(TensorSpec("x", "float32", (1, ROWS, WIDTH), Kind.HIDDEN),),
        outputs=tuple(TensorSpec(name, "float32", shape, Kind.LOGITS) for name, shape in shapes.items()),
    )

    def example(seed: int) -> Inputs:
        return {"x": np.random.default_rng(seed).standard_normal((1, ROWS, WIDTH), dtype=np.float32)}

    return Graph("endings", Endings(), (Component("endings", "endings", signature, example),))


def lower_in_new_process(folder: Path, precision: Precision, hash_seed: int) -> Path:
    """The asset of `layers_graph`."""
    asset = folder / "layers.aimodel"
    command = f"""
from pathlib import Path
from {__name__} import layers_graph
from voxport.export.targets.coreai.lowering import lower_graph
lower_graph(layers_graph(), Path({str(asset)!r}), {precision!r})
"""
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", command], env=environment, check=True, capture_output=True)
    return asset
