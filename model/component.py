"""What is exported, as data: a family yields `Component` values, and export walks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
from torch import nn

Shape = tuple[int | str, ...]
Dtype = Literal["float32", "int64"]


class Kind(StrEnum):
    """What a tensor is; a manifest says it of each."""

    EMBEDDING = "embedding"
    HIDDEN = "hidden"
    LOGITS = "logits"
    LATENT = "latent"
    AUDIO = "audio"
    INDEX = "index"


@dataclass(frozen=True)
class TensorSpec:
    """One input or output. A string in `shape` names a dimension, whose bounds stand in `Component.dims`."""

    name: str
    dtype: Dtype
    shape: Shape
    kind: Kind


@dataclass(frozen=True)
class StateSpec:
    """What a component carries from call to call. Components of one graph that name the same state share it.

    A cache with a `window` rolls: it holds the last rows of a stream without end, of which a query sees so many, and a call that goes
    beyond the window writes `at_once` rows at most; it has window + at_once - 1 rows. `stride` is how many rows a position takes.
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    is_cache: bool = False
    window: int | None = None
    stride: int = 1
    at_once: int = 1


@dataclass(frozen=True)
class Component:
    """A callable part of a model.

    `module` is pure: `forward(*inputs, *states) -> (*outputs, *states)`, so that each target may keep states its own way.
    `graph` names what is lowered: two components of one graph are two entry points of it, and share weights and states.
    `example(seed, **dims)` gives inputs with the named dimensions fixed.
    `batched`: axis 0 of every input, output and state, here 1, may count streams that one call serves; they do not touch each other.
    """

    name: str
    graph: str
    module: nn.Module
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    example: Callable[..., dict[str, np.ndarray]]
    states: tuple[StateSpec, ...] = ()
    dims: dict[str, tuple[int, int]] = field(default_factory=dict)
    purpose: str = ""
    batched: bool = False
