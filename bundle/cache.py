"""Layouts of KV caches, and the names of caches and other states in an artifact.

Export and runtime share these definitions.
"""

from dataclasses import dataclass
from typing import Literal

LayoutName = Literal["BSHD", "BHSD", "BHSD, staged"]
ROTARY_SPAN = (
    4096  # rows of each of the two tables that give the angles of a sliding-window cache's positions
)
# Rows that a sliding-window cache may count: 93 hours at 50 rows per second.
MAX_ROW_POSITION = ROTARY_SPAN * (ROTARY_SPAN - 1)
ONNX_PAST, ONNX_PRESENT = "past.", "present."  # prefixes of a state's input and output


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


def cache_shape(layout: LayoutName, rows: int, n_kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """Shape of one cache tensor: [1, rows, heads, head_dim] or [1, heads, rows, head_dim]."""
    if LAYOUTS[layout].row_axis == 1:
        return (1, rows, n_kv_heads, head_dim)
    return (1, n_kv_heads, rows, head_dim)


def coreml_state_name(graph: str, state: str) -> str:
    """Name of a state in a Core ML package, and of a mutable buffer in an ExecuTorch program."""
    return f"{graph}_{state}"


def read_method(graph: str) -> str:
    """ExecuTorch method that returns the states of a graph."""
    return f"{graph}.read"


def write_method(graph: str) -> str:
    """ExecuTorch method that replaces the states of a graph."""
    return f"{graph}.write"
