"""The only graph of the toy family: the holder of the tensors, the decoder, and its components."""

from __future__ import annotations

import numpy as np
import torch
from exercises.toy_model.config import Options, ToyConfig
from torch import nn

from voxport.bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec, cache_shape
from voxport.model.graph import Component, GraphSpec, Inputs, ModelSpec


class ToyWeights(nn.Module):
    """body.weight [dim, dim] and head.weight [dim, dim]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body, self.head = (nn.Linear(dim, dim, bias=False) for _ in range(2))


class Decoder(nn.Module):
    """The graph of `prefill` and `decode_step`.

    x [1, S, dim], position int64 [1] of the first row, cache of L rows with one head -> y [1, S, dim], cache.
    A row of y is `head(mean of body(x))` over all positions up to its own.
    """

    def __init__(self, weights: ToyWeights) -> None:
        super().__init__()
        self.body, self.head = weights.body, weights.head

    def forward(
        self, x: torch.Tensor, position: torch.Tensor, cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = cache.reshape(-1, x.shape[2])  # [L, dim]: with one head, the same in every layout
        row = torch.arange(rows.shape[0])  # [L]
        own = position + torch.arange(x.shape[1])  # [S]
        new = (row[:, None] == own).float() @ self.body(x)[0]  # [L, dim]
        is_new = torch.logical_and(row >= position, row < position + x.shape[1])
        rows = torch.where(is_new[:, None], new, rows)
        share = (own[:, None] >= row).float() / (own + 1)[:, None].float()  # [S, L]
        return self.head((share @ rows)[None]), rows.reshape(cache.shape)


class DecoderGraph(GraphSpec[ToyWeights, ToyConfig, Options]):
    name = "decoder"
    weights = ("body", "head")

    def build(self, weights: ToyWeights, model: ModelSpec[ToyConfig, Options]) -> nn.Module:
        return Decoder(weights)

    def components(self, model: ModelSpec[ToyConfig, Options]) -> tuple[Component, ...]:
        dim, length, layout = model.config.toy_dim, model.cache_length, model.layout
        shape = cache_shape(layout, length, 1, dim)

        def example(seed: int, S: int = 1) -> Inputs:
            x = np.random.default_rng(seed).standard_normal((1, S, dim), dtype=np.float32)
            return {"x": x, "position": np.array([0])}

        def signature(rows: int | str) -> Signature:
            return Signature(
                inputs=(
                    TensorSpec("x", "float32", (1, rows, dim), Kind.EMBEDDING),
                    TensorSpec("position", "int64", (1,), Kind.INDEX),
                ),
                outputs=(TensorSpec("y", "float32", (1, rows, dim), Kind.LOGITS),),
                states=(StateSpec("cache", "float32", shape, CacheSpec(layout)),),
                dims={"S": (1, length)} if rows == "S" else {},
            )

        return (
            Component("prefill", self.name, signature("S"), example, "letters of the prompt"),
            Component("decode_step", self.name, signature(1), example, "the next letter"),
        )
