"""Estimates of an export from shapes alone: memory, time and disk.

The constants are measured with exports of the published size and of the smallest one, on two cores with
AVX-512. `speed` scales the times to the current machine.
"""

import time
from typing import Any

import torch
from torch import nn

from export.resolve import Resolved
from export.targets.base import Target
from export.weights import GraphWeights, graph_weights
from model.checkpoint import is_below
from quantize.search import search_scales

TOOLS_BYTES = 0.5e9  # resident after torch and the packages of a target are imported
LOADING = 6  # bytes for each weight of the largest tensor while it is read: as stored, and as a float
STREAMS = 3  # sets of caches that verification holds at once: two streams and a snapshot
HASHED = 0.3e9  # bytes of the source that are hashed per second
QUANTISED, READ = 60e6, 400e6  # weights that are quantised, and weights that are only read, per second
PROBE = 2**20  # weights that `speed` quantises at a time
PROBED = 100e6  # weights that the reference machine quantises per second
SLOWEST = 0.2  # least result of `speed`


def estimate(resolved: Resolved, target: Target, verifies: bool = True) -> dict[str, Any]:
    """Weights and bytes of each graph; disk and peak memory in bytes, time in seconds. `verifies` includes
    verification.

    Verification needs the weights of all graphs. The peak of memory is therefore where the largest tensor of
    a graph is read, where the artifact of a graph is made, or where all artifacts run beside their
    references.
    """
    source, costs = resolved.source, target.costs
    root = source.root()
    graphs: dict[str, dict[str, Any]] = {}
    loaded, peak, seconds = 0.0, 0.0, source.checkpoint.size / HASHED
    for graph, recipe in resolved.recipes.items():
        prefixes = source.family.weights_of_graph[graph]
        loaded = loaded if verifies else 0.0
        weights = graph_weights(root, source.family, graph, recipe, target.float_bytes)
        reading = loaded + LOADING * _largest(root, prefixes)
        peak = max(peak, reading, loaded + weights.loaded + costs.lowering * weights.stored)
        loaded += weights.packed
        rate = READ if recipe.linears is None else QUANTISED
        seconds += costs.product * _products(root, prefixes) + weights.count / rate
        graphs[graph] = _graph_row(weights, recipe.name)
    artifact = sum(row["bytes"] for row in graphs.values())
    count = sum(row["weights"] for row in graphs.values())
    if verifies:
        streams = STREAMS * _cache_bytes(resolved)
        reference = 0 if source.is_large else 4 * count  # of a small model, in full precision
        peak = max(peak, loaded + costs.running * artifact + streams + reference)
        seconds += costs.verification + (costs.sample * count / 1e9 if source.is_large else 0)
    return {
        "graphs": graphs,
        "disk_bytes": int(artifact + sum(rows.numel() * 4 for rows in source.voices.values())),
        "memory_bytes": int(TOOLS_BYTES + peak),
        "reference_seconds": seconds,
    }


def _graph_row(weights: GraphWeights, recipe: str) -> dict[str, Any]:
    return {"weights": weights.count, "bytes": int(weights.stored), "recipe": recipe}


def speed(seconds: float = 1.0) -> float:
    """Speed of this machine relative to the reference machine, at least `SLOWEST`.

    The best of the small searches for scales that fit into `seconds`. Other programs on the machine may delay
    one search a hundred times.
    """
    weight = torch.randn(PROBE // 1024, 1024, generator=torch.Generator().manual_seed(0))
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        started = time.perf_counter()
        search_scales(weight, 32, (-8, 7))
        best = min(best, time.perf_counter() - started)
    return max(SLOWEST, PROBE / PROBED / best)


def _products(root: nn.Module, prefixes: tuple[str, ...]) -> int:
    """Number of weights that become products: matrices and kernels of convolutions."""
    return sum(
        is_below(name, prefixes) and parameter.dim() > 1
        for name, parameter in root.named_parameters(remove_duplicate=False)
    )


def _largest(root: nn.Module, prefixes: tuple[str, ...]) -> int:
    return max(
        (
            parameter.numel()
            for name, parameter in root.named_parameters(remove_duplicate=False)
            if is_below(name, prefixes)
        ),
        default=0,
    )


def _cache_bytes(resolved: Resolved) -> int:
    """Bytes of the caches of the component that has the most."""
    return max(
        sum(4 * torch.Size(state.shape).numel() for state in component.signature.states)
        for component in resolved.components()
    )
