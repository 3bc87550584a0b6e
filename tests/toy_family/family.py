"""The hooks of the toy family."""

from typing import Any

import numpy as np
import torch
from torch import nn

from bundle.cache import LayoutName, cache_shape
from bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from model.checkpoint import Checkpoint, expected_tensors
from model.component import Component
from model.family import Family, Synthetic
from model.verification_plan import VerificationPlan
from toy_family.config import Options, ToyConfig, load_config
from toy_family.format import FORMAT


class ToyWeights(nn.Module):
    """body.weight [dim, dim] and head.weight [dim, dim]."""

    def __init__(self, dim: int):
        super().__init__()
        self.body, self.head = (nn.Linear(dim, dim, bias=False) for _ in range(2))


class Step(nn.Module):
    """x [1, 1, dim], position int64 [1], cache [1, 1, rows, dim] -> head(sum of all body(x)), cache."""

    def __init__(self, weights: ToyWeights):
        super().__init__()
        self.body, self.head = weights.body, weights.head

    def forward(
        self, x: torch.Tensor, position: torch.Tensor, cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(cache.shape[2])
        cache = torch.where((rows == position)[:, None], self.body(x)[:, None], cache)
        seen = cache * (rows <= position)[:, None]
        return self.head(seen.sum(2)), cache


def build_root(config: ToyConfig) -> ToyWeights:
    with torch.device("meta"):
        return ToyWeights(config.toy_dim).requires_grad_(False)


def open_root(config: ToyConfig, checkpoint: Checkpoint) -> ToyWeights:
    root = build_root(config)
    checkpoint.check(expected_tensors(root))
    return root


def build(graph: str, root: ToyWeights, config: ToyConfig, options: Options, cache_length: int) -> nn.Module:
    return Step(root)


def components(
    config: ToyConfig, options: Options, cache_length: int, layout: LayoutName = "BSHD"
) -> tuple[Component, ...]:
    def example(seed: int) -> dict[str, np.ndarray]:
        x = np.random.default_rng(seed).standard_normal((1, 1, config.toy_dim), dtype=np.float32)
        return {"x": x, "position": np.array([0])}

    shape = cache_shape("BHSD", cache_length, 1, config.toy_dim)
    signature = Signature(
        inputs=(
            TensorSpec("x", "float32", (1, 1, config.toy_dim), Kind.EMBEDDING),
            TensorSpec("position", "int64", (1,), Kind.INDEX),
        ),
        outputs=(TensorSpec("y", "float32", (1, 1, config.toy_dim), Kind.HIDDEN),),
        states=(StateSpec("cache", "float32", shape, CacheSpec("BHSD")),),
    )
    return (Component("step", "step", signature, example, "the sum of everything so far"),)


def _unit(name: str, shape: tuple[int, ...], config: Any) -> tuple[np.float32, np.float32]:
    return np.float32(0), np.float32(shape[-1] ** -0.5)


FAMILY = Family(
    name="toy",
    title="Toy",
    licence="none",
    format=FORMAT,
    parse_config=lambda content, source: ToyConfig.model_validate(content),
    load_config=load_config,
    options=Options,
    constants=lambda config, options: {"dim": config.toy_dim},
    build_root=build_root,
    open_root=open_root,
    weights_of_graph={"step": ("body", "head")},
    components=components,
    build=build,
    longest_cache=lambda config: 256,
    default_cache=lambda config: 64,
    verification=VerificationPlan(),
    parameter_groups={"body.": "body", "head.": "head"},
    summary=lambda config: [("toy", str(config.toy_dim))],
    calls=lambda constants, options: "Call `step`.",
    synthetic=Synthetic(
        version=1,
        sizes=("tiny",),
        config_file="toy.json",
        config=lambda size: {"toy_dim": 32},
        documents=lambda size: {},
        distribution=_unit,
        weight_files={"model.safetensors": "", "head/model.safetensors": "head."},
    ),
)
