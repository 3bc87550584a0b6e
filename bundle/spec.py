"""`Signature`: inputs, outputs and states of one callable.

One class describes a torch module, an eager call, an artifact's entry point and an engine's call. The layouts
of KV caches and the names of states in artifacts are here as well.
"""

from dataclasses import field
from enum import StrEnum
from math import prod
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

MAX_STATE_VALUES = 2**32  # a cache of the published models has 2 million to 134 million
# Rows of each of the two tables that give the angles of a sliding-window cache's positions.
ROTARY_SPAN = 4096
# Rows that a sliding-window cache may count: 93 hours at 50 rows per second.
MAX_ROW_POSITION = ROTARY_SPAN * (ROTARY_SPAN - 1)
# Ends of the names of the ExecuTorch methods that return and replace the states of a graph.
READ_METHOD, WRITE_METHOD = ".read", ".write"
# Added to the attention scores of hidden keys. Finite: a softmax in half precision stays defined if all
# scores of a row are hidden.
MASKED_SCORE = -1e4
ONNX_PAST, ONNX_PRESENT = "past.", "present."  # prefixes of a state's input and output

Dimension = Annotated[int, Field(ge=0)] | str
Size = Annotated[int, Field(ge=1, le=2**40)]
Bounds = tuple[Size, Size]
Dtype = Literal["float32", "float16", "int64", "int32"]
LayoutName = Literal["BSHD", "BHSD", "BHSD, staged"]


class Kind(StrEnum):
    """The meaning of a tensor's values.

    CHOICE: codes that are chosen among near values, and how near those are. A rounding may change a choice
    and everything that follows it, so the family compares them.
    """

    EMBEDDING = "embedding"
    HIDDEN = "hidden"
    LOGITS = "logits"
    LATENT = "latent"
    AUDIO = "audio"
    INDEX = "index"
    CHOICE = "choice"


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    A string in `shape` names a dimension bounded by `Signature.dims`; `1920*T` is a multiple of one.
    """

    name: str
    dtype: Dtype
    shape: tuple[Dimension, ...]
    kind: Kind


@dataclass(frozen=True)
class Layout:
    """Memory order of a cache tensor. `row_axis` is the axis of its rows.

    A sliding-window cache of L rows stores the row of position p in one of two ways:

    - ring: at row `p mod L`. L is at least window + rows of a call - 1. A new row then never overwrites a
      visible key.
    - staged: history at row `p mod (window - 1)`. The rows of a call are written behind the history and are
      moved into it after the call. A cache of exactly `window` rows takes one row per call once it is full.
    """

    row_axis: int
    staged: bool = False


LAYOUTS: dict[str, Layout] = {
    "BSHD": Layout(row_axis=1),
    "BHSD": Layout(row_axis=2),
    "BHSD, staged": Layout(row_axis=2, staged=True),
}


@dataclass(frozen=True)
class CacheSpec:
    """How a KV cache is used. A position takes `rows_per_position` rows.

    A cache without a `window` holds every row from the first to its end. A sliding-window cache holds the
    last rows of an unbounded stream: a query sees `window` keys. A call that ends within the first `window`
    rows of the stream writes any number of them, a later one at most `max_call_rows`.
    """

    layout: LayoutName
    window: Annotated[int, Field(ge=1, le=2**24)] | None = None
    rows_per_position: Annotated[int, Field(ge=1, le=2**10)] = 1
    max_call_rows: Annotated[int, Field(ge=1, le=2**20)] = 1

    @property
    def row_axis(self) -> int:
        return LAYOUTS[self.layout].row_axis


@dataclass(frozen=True)
class StateSpec:
    """A tensor that is kept from call to call. Components of one graph share states of the same name."""

    name: str
    dtype: Dtype
    shape: tuple[Size, ...]
    cache: CacheSpec | None = None

    def __post_init__(self) -> None:
        if prod(self.shape) > MAX_STATE_VALUES:
            raise ValueError(
                f"state {self.name[:50]} of {prod(self.shape)} values, expected at most {MAX_STATE_VALUES}"
            )
        if not self.cache:
            return
        if len(self.shape) <= self.cache.row_axis:
            raise ValueError(f"cache {self.name[:50]} of {len(self.shape)} axes, expected 4")
        needed = (self.cache.window or 1) - 1 + self.cache.max_call_rows
        if self.cache.window and self.rows < needed:
            raise ValueError(f"cache {self.name[:50]} of {self.rows} rows, its window needs {needed}")

    @property
    def rows(self) -> int:
        """Rows of a cache; 0 if the state is not a cache."""
        return self.shape[self.cache.row_axis] if self.cache else 0

    @property
    def positions(self) -> int:
        """Positions that a cache holds at a time; 0 if the state is not a cache."""
        return self.rows // self.cache.rows_per_position if self.cache else 0

    @property
    def window(self) -> int | None:
        """Keys that a query of a sliding-window cache sees; None for any other state."""
        return self.cache.window if self.cache else None


@dataclass(frozen=True)
class Signature:
    """Inputs, outputs and states of one callable, and the bounds of the dimensions that input shapes name."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[StateSpec, ...] = ()
    dims: dict[str, Bounds] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tensor in self.inputs:
            for size in tensor.shape:
                if isinstance(size, str) and size not in self.dims:
                    raise ValueError(f"input {tensor.name} has a size {size!r} without bounds")

        if any(tensor.name == "position" for tensor in self.inputs) and len(self.inputs[0].shape) < 2:
            raise ValueError(f"the first input, {self.inputs[0].name}, has no axis of rows")

    @property
    def cache(self) -> StateSpec | None:
        """The first cache, or None. All caches of a component have the same number of rows."""
        return next((state for state in self.states if state.cache), None)

    @property
    def capacity(self) -> int | None:
        """Positions that a call may reach, or None without a cache.

        For a sliding window, these are the positions of the longest stream.
        """
        state = self.cache
        if state is None or state.cache is None:
            return None
        rows = MAX_ROW_POSITION if state.cache.window else state.rows
        return rows // state.cache.rows_per_position


def cache_shape(layout: LayoutName, rows: int, n_kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """Shape of one cache tensor: [1, rows, heads, head_dim] or [1, heads, rows, head_dim]."""
    if LAYOUTS[layout].row_axis == 1:
        return (1, rows, n_kv_heads, head_dim)
    return (1, n_kv_heads, rows, head_dim)


def graph_state_name(graph: str, state: str) -> str:
    """Name of a graph's state for Core ML and Core AI, and of its mutable buffer in an ExecuTorch program."""
    return f"{graph}_{state}"
