"""The only graph of the toy family."""

from __future__ import annotations

import numpy as np
from exercises.toy_model.config import Options, ToyConfig
from exercises.toy_model.modules import Decoder, ToyWeights
from torch import nn

from voxport.bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec, cache_shape
from voxport.model.graph import Component, GraphSpec, Inputs, ModelSpec


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
