"""What an export would take, from shapes alone: memory, time and disk.

The constants are of exports of the published size and of the tiny one, on two cores with AVX-512; `speed` brings the times to the
machine that asks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bundle.manifest import ExportRequest
from export.job import describe, resolve_recipes
from export.source import Source
from export.targets import float_bytes
from export.weights import graph_weights
from model.checkpoint import is_below
from quantize.scales import search_scales

TOOLS_BYTES = 0.5e9  # resident after importing torch and a target's packages
LOADING = 6  # bytes for each weight of the largest tensor while it is read: as stored, and as a float
STREAMS = 3  # sets of one graph's full caches that verification holds at once: of two streams, and a snapshot
HASHED, QUANTISED, READ = (
    0.3e9,
    60e6,
    400e6,
)  # bytes of the source, weights quantised and weights only read, per second
PROBE, PROBED, SLOWEST = (
    2**20,
    100e6,
    0.2,
)  # weights that `speed` quantises, and how many per second; the least that it says


@dataclass(frozen=True)
class Cost:
    """Of a target's tools: bytes beside the loaded weights for each byte of a graph's artifact, while it is lowered and while
    it runs; seconds to lower one product; seconds of verification, of any model and for each 1e9 weights of a large one."""

    lowering: float
    running: float
    product: float
    verification: float
    sample: float


COSTS = {
    "onnx": Cost(lowering=1.2, running=1.5, product=0.05, verification=15, sample=20),
    "executorch": Cost(lowering=1.5, running=1.7, product=0.5, verification=17, sample=28),
    "coreml": Cost(lowering=2.7, running=1.8, product=0.45, verification=40, sample=16),
}


def estimate(
    source: Source, request: ExportRequest, target: str, check: bool = True, precision: str | None = None
) -> dict[str, Any]:
    """Weights and bytes of each graph; disk and peak memory in bytes, time in seconds. `check` counts verification in.

    For verification weights stay loaded, so the peak lies in one of three places: where a graph's largest tensor is read, where
    its artifact is made, or where the whole runs beside its references.
    """
    root, cost = source.root(), COSTS[target]
    graphs: dict[str, dict[str, Any]] = {}
    loaded, peak, seconds = 0.0, 0.0, _source_bytes(source) / HASHED
    for graph, recipe in resolve_recipes(source, request).items():
        prefixes = source.family.weights_of_graph[graph]
        loaded = loaded if check else 0.0
        weights = graph_weights(root, source.family, graph, recipe, float_bytes(target, precision))
        peak = max(
            peak,
            loaded + LOADING * _largest(root, prefixes),
            loaded + weights.loaded + cost.lowering * weights.stored,
        )
        loaded += weights.packed
        seconds += cost.product * _products(root, prefixes) + weights.count / (
            READ if recipe.linears is None else QUANTISED
        )
        graphs[graph] = {"weights": weights.count, "bytes": int(weights.stored), "recipe": recipe.name}
    artifact = sum(row["bytes"] for row in graphs.values())
    if check:
        streams = STREAMS * _cache_bytes(source, request)
        peak = max(
            peak,
            loaded + cost.running * artifact + streams + (0 if source.is_large else _full_precision(graphs)),
        )
        seconds += cost.verification + (
            cost.sample * sum(row["weights"] for row in graphs.values()) / 1e9 if source.is_large else 0
        )
    return {
        "graphs": graphs,
        "disk_bytes": int(artifact + sum(rows.numel() * 4 for rows in source.voices.values())),
        "memory_bytes": int(TOOLS_BYTES + peak),
        "seconds": round(seconds / speed(), 1),
    }


def speed(seconds: float = 1.0) -> float:
    """Of this machine, 1 for the one whose constants stand here: the best of the small searches for scales that `seconds` allow.

    At least `SLOWEST`: where other programs take the processor, one search may wait a hundred times as long as it works.
    """
    weight = torch.randn(PROBE // 1024, 1024, generator=torch.Generator().manual_seed(0))
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        started = time.perf_counter()
        search_scales(weight, 32, (-8, 7))
        best = min(best, time.perf_counter() - started)
    return max(SLOWEST, PROBE / PROBED / best)


def _source_bytes(source: Source) -> int:
    return source.checkpoint.size


def _products(root: nn.Module, prefixes: tuple[str, ...]) -> int:
    """Weights that become products: matrices, and kernels of convolutions."""
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


def _cache_bytes(source: Source, request: ExportRequest) -> int:
    """Of the graph that has the largest."""
    return max(
        sum(4 * torch.Size(state.shape).numel() for state in component.signature.states)
        for component in describe(source, request)
    )


def _full_precision(graphs: dict[str, dict[str, Any]]) -> int:
    """A reference in full precision is held whole where the model is small."""
    return 4 * sum(int(row["weights"]) for row in graphs.values())
