"""Layout of the KV caches of the target ExecuTorch, and how many rows of one a call moves."""

from voxport.bundle.spec import LayoutName
from voxport.model.graph import Component

LAYOUT: LayoutName = "BSHD"
MAX_STATE_ROWS = 64  # cache rows that one call of `GRAPH.read` or `GRAPH.write` moves at most


def state_rows_per_call(component: Component) -> int:
    """Cache rows that one call of `GRAPH.read` or `GRAPH.write` moves at most; 0 without a cache."""
    cache = component.signature.cache
    return min(MAX_STATE_ROWS, cache.shape[1]) if cache else 0
