"""The hooks of the toy family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from string import ascii_lowercase

import numpy as np
from exercises.toy_model.config import Options, ToyConfig, load_config, parse_config
from exercises.toy_model.format import FORMAT, LETTERS
from exercises.toy_model.modules import ToyWeights, build

from voxport.bundle.spec import CacheSpec, Kind, LayoutName, Signature, StateSpec, TensorSpec, cache_shape
from voxport.model.family import Decoder, Family, Synthetic, VerificationPlan
from voxport.model.graph import Component

DIM = 32
GRAPH = "decoder"


def components(
    config: ToyConfig, options: Options, cache_length: int, layout: LayoutName
) -> tuple[Component, ...]:
    def signature(rows: int | str) -> Signature:
        return Signature(
            inputs=(
                TensorSpec("x", "float32", (1, rows, config.toy_dim), Kind.EMBEDDING),
                TensorSpec("position", "int64", (1,), Kind.INDEX),
            ),
            outputs=(TensorSpec("y", "float32", (1, rows, config.toy_dim), Kind.LOGITS),),
            states=(StateSpec("cache", "float32", shape, CacheSpec(layout)),),
            dims={"S": (1, cache_length)} if rows == "S" else {},
        )

    shape, example = cache_shape(layout, cache_length, 1, config.toy_dim), _example(config)
    return (
        Component("prefill", GRAPH, signature("S"), example, "letters of the prompt"),
        Component("decode_step", GRAPH, signature(1), example, "the next letter"),
    )


def _example(config: ToyConfig) -> Callable[..., dict[str, np.ndarray]]:
    def example(seed: int, S: int = 1) -> dict[str, np.ndarray]:
        x = np.random.default_rng(seed).standard_normal((1, S, config.toy_dim), dtype=np.float32)
        return {"x": x, "position": np.array([0])}

    return example


def _distribution(name: str, shape: tuple[int, ...], config: ToyConfig) -> tuple[np.float32, np.float32]:
    return np.float32(0), np.float32(shape[-1] ** -0.5)


def _write_letters(folder: Path, size: str, seed: int) -> None:
    (folder / LETTERS).write_text((". " + ascii_lowercase + "0123456789")[:DIM])


FAMILY = Family(
    name="toy",
    title="Toy",
    licence="none",
    task="text-to-speech",
    languages=("en",),
    format=FORMAT,
    parse_config=parse_config,
    load_config=load_config,
    options=Options,
    constants=lambda config, options: {"dim": config.toy_dim},
    weights=lambda config: ToyWeights(config.toy_dim),
    weights_of_graph={GRAPH: ("body", "head")},
    components=components,
    build=build,
    longest_cache=lambda config: 4096,
    default_cache=lambda config, options: 128,
    verification=VerificationPlan(decoders=(Decoder("prefill", "decode_step", output="y"),)),
    parameter_groups={"body.": "body", "head.": "head"},
    summary=lambda config: [("toy", str(config.toy_dim))],
    calls=lambda constants, options: "Call `prefill` once, then `decode_step` for each letter.",
    synthetic=Synthetic(
        version=1,
        sizes=("tiny",),
        config=lambda size: {"toy_dim": DIM},
        documents=lambda size: {"toy.json": {"toy_dim": DIM}},
        distribution=_distribution,
        weight_files={"model.safetensors": "", "head/model.safetensors": "head."},
        extra_files=lambda size: [LETTERS],
        write_extra_files=_write_letters,
    ),
)
