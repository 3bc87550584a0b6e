"""What an export would take, from shapes alone."""

from __future__ import annotations

from typing import Any

from export.source import Plan, Source, graph_weights
from export.targets import float_bytes

TOOLS_BYTES = 0.9e9  # resident after importing torch and a target's packages: 0.6 to 0.9 GB measured
# Copies of the artifact's bytes that a target's tool holds at its peak, beside the loaded weights.
COPIES = {"onnx": 1.0, "executorch": 2.0, "coreml": 2.0}


def estimate(source: Source, plan: Plan, target: str, check: bool = True, precision: str | None = None) -> dict[str, Any]:
    """Weights and bytes of each graph, disk and peak memory in bytes. Not measured at full size: an order of magnitude.

    Lowering holds the loaded weights and what the target's tool copies; verification (`check`) holds the loaded weights, the
    artifact, and one graph in full precision.
    """
    root = source.root()
    graphs: dict[str, dict[str, Any]] = {}
    loaded = 0.0
    for graph, recipe in source.recipes(plan).items():
        weights = graph_weights(root, source.family.weights_of_graph[graph], recipe, source.family.constant, float_bytes(target, precision))
        loaded += weights.loaded
        graphs[graph] = {"weights": weights.count, "bytes": int(weights.held), "recipe": recipe.name}
    disk = sum(row["bytes"] for row in graphs.values()) + sum(rows.numel() * 4 for rows in source.voices.values())
    quantised = loaded < 4 * sum(row["weights"] for row in graphs.values())
    peaks = [loaded + COPIES[target] * disk]
    if check:
        counts = [int(row["weights"]) for row in graphs.values()]
        # the reference executor of Core ML holds integers in bytes, and every weight in single precision
        artifact = 5 * sum(counts) if target == "coreml" else disk
        full = 4 * max(counts) if quantised or target == "coreml" else 0
        peaks.append(loaded + artifact + full)
    return {"graphs": graphs, "disk_bytes": int(disk), "memory_bytes": int(TOOLS_BYTES + max(peaks))}
