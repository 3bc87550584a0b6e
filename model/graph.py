"""`GraphSpec`: everything that is said about one graph of a model. `Component`: one callable of a graph.

A family lists graphs; export builds, quantises, lowers and verifies them. Imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic

import numpy as np
from typing_extensions import TypeVar

from voxport.bundle.manifest import Record
from voxport.bundle.spec import CacheSpec, Kind, LayoutName, Signature, StateSpec, TensorSpec
from voxport.model.config import Config

if TYPE_CHECKING:
    from torch import nn

Weights = TypeVar("Weights", bound="nn.Module", default="nn.Module")
Options = TypeVar("Options", bound=Record, default=Record)

Inputs = dict[str, np.ndarray]  # by name
PROMPT_ROWS = 256  # one call with a prompt, if a target plans memory for the largest call
POSITION = TensorSpec("position", "int64", (1,), Kind.INDEX)


@dataclass(frozen=True)
class Component:
    """One callable of a model, without module and weights.

    graph: name of the graph that computes it. Components of one graph are entry points of one module at
        different sizes, and share its weights and states. That module is pure:
        `forward(*inputs, *states) -> (*outputs, *states)`.
    example(seed, **dims): inputs by name, of the given sizes.
    cases: how many seeds in a row give inputs for every case that the component distinguishes, such as the
        steps of a loop.
    batched: axis 0 of every input, output and state may be larger than 1. The rows are independent.
    rows_per_call: a narrower bound of the dynamic dimension, for targets that hold memory for the largest
        call. `Stream.run_rows` of the runtime divides longer inputs. None: the declared bounds stay.
    """

    name: str
    graph: str
    signature: Signature
    example: Callable[..., Inputs]
    purpose: str = ""
    batched: bool = False
    cases: int = 1
    rows_per_call: int | None = None


@dataclass(frozen=True)
class ModelSpec(Generic[Config, Options]):
    """What decides the shapes of a model. Its caches have `cache_length` rows in `layout`."""

    config: Config
    options: Options
    cache_length: int
    layout: LayoutName = "BSHD"


class GraphSpec(ABC, Generic[Weights, Config, Options]):
    """One graph: a module with its weights, which one artifact computes.

    name: also names the artifact.
    weights: module paths, in the holder of the checkpoint's tensors, that the graph needs.
    keep_float: patterns of module paths that stay floats unless a rule says otherwise.
    min_bits: bits that its weights have at least, unless `quant_for` says otherwise.
    eight_bits: patterns of module paths that have at least 8 bits unless a rule says otherwise.
    float16: whether half precision holds its values. If not, targets compute the graph in float32.
    joinable: whether its calls can be replayed as one, for calibration. If not, weights alone decide.
    """

    name: str
    weights: tuple[str, ...]
    keep_float: tuple[str, ...] = ()
    min_bits: int = 1
    eight_bits: tuple[str, ...] = ()
    float16: bool = True
    joinable: bool = True

    @abstractmethod
    def build(self, weights: Weights, model: ModelSpec[Config, Options]) -> nn.Module:
        """The module, from the holder with the loaded weights of the graph.

        Fusing removes weights from the holder, so a graph is built once from a holder.
        """

    @abstractmethod
    def components(self, model: ModelSpec[Config, Options]) -> tuple[Component, ...]:
        """The components, without touching a module: the one with the widest bounds first, the one of the
        smallest steps last.
        """

    def reads(self, config: Config) -> dict[str, int]:
        """How often one call reads the weights below a module path, if not once."""
        return {}


def token_table(
    spec: GraphSpec[Weights, Config, Options],
    model: ModelSpec[Config, Options],
    vocab_size: int,
    width: int,
    purpose: str,
    batched: bool = False,
) -> Component:
    """The only component of a graph that gives a row for each id of a prompt."""

    def example(seed: int, S: int = 8) -> Inputs:
        return {"ids": np.random.default_rng(seed).integers(0, vocab_size, (1, S))}

    signature = Signature(
        inputs=(TensorSpec("ids", "int64", (1, "S"), Kind.INDEX),),
        outputs=(TensorSpec("embeddings", "float32", (1, "S", width), Kind.EMBEDDING),),
        dims={"S": (1, model.cache_length)},
    )
    return Component(
        spec.name, spec.name, signature, example, purpose, batched=batched, rows_per_call=PROMPT_ROWS
    )


def random_embeddings(width: int, seed: int, S: int = 8) -> Inputs:
    """Example inputs of a backbone at the first position."""
    values = np.random.default_rng(seed).standard_normal((1, S, width), dtype=np.float32)
    return {"embeddings": values, "position": np.array([0])}


def kv_caches(
    layers: int, shape: tuple[int, ...], cache: CacheSpec, prefix: str = ""
) -> tuple[StateSpec, ...]:
    """Key and value cache of each layer, in the order in which `run_blocks` takes them."""
    names = (f"{prefix}{kind}_cache_{index}" for index in range(layers) for kind in "kv")
    return tuple(StateSpec(name, "float32", shape, cache) for name in names)


def decoder_components(
    graph: str,
    width: int,
    longest_prompt: int,
    outputs: tuple[TensorSpec, ...],
    states: tuple[StateSpec, ...],
    example: Callable[..., Inputs],
    purposes: tuple[str, str],
    other_inputs: tuple[TensorSpec, ...] = (),
    rows_per_call: int | None = None,
) -> tuple[Component, Component]:
    """`prefill` for the rows of a prompt, and `decode_step` for one row: the same graph and states.

    `outputs` follow `hidden`, and `other_inputs` follow the embeddings [1, S, width] and the position.
    """

    def signature(rows: int | str) -> Signature:
        return Signature(
            inputs=(
                TensorSpec("embeddings", "float32", (1, rows, width), Kind.EMBEDDING),
                POSITION,
                *other_inputs,
            ),
            outputs=(TensorSpec("hidden", "float32", (1, rows, width), Kind.HIDDEN), *outputs),
            states=states,
            dims={"S": (1, longest_prompt)} if rows == "S" else {},
        )

    prompt, row = purposes
    return (
        Component("prefill", graph, signature("S"), example, prompt, rows_per_call=rows_per_call),
        Component("decode_step", graph, signature(1), partial(example, S=1), row, batched=True),
    )


def codec_components(
    graph: str, signature: Signature, example: Callable[..., Inputs], rows_per_call: int
) -> tuple[Component, Component]:
    """A codec for whole utterances and for their next frames: the same graph with the same bounds."""
    whole = "codes of a whole utterance to samples; `position` is 0, and the states have no effect"
    step = "the next frames of an utterance to samples; `position` counts the frames before"
    return (
        Component("codec", graph, signature, example, whole, rows_per_call=rows_per_call),
        Component("codec_step", graph, signature, example, step, rows_per_call=rows_per_call),
    )
