"""`Component`: one callable of a model, as data.

A family lists components; export builds, lowers and verifies them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from voxport.bundle.spec import Signature

Inputs = dict[str, np.ndarray]  # by name
PROMPT_ROWS = 256  # of a prompt in one call, where a target plans memory for the largest call


@dataclass(frozen=True)
class Component:
    """One callable of a model, without module and weights.

    graph: name of the module that computes it. Components of one graph are entry points of one module at
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


def random_ids(vocab_size: int, seed: int, S: int = 8) -> Inputs:
    """Example inputs of a component that takes ids [1, S]."""
    return {"ids": np.random.default_rng(seed).integers(0, vocab_size, (1, S))}
