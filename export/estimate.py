"""What an export would take, from shapes alone."""

from __future__ import annotations

from typing import Any

from export.source import Plan, Source, graph_weights

TOOLS_BYTES = 0.9e9  # resident after importing torch and a target's packages: 0.6 to 0.9 GB measured
# Copies of the artifact's bytes that a target's tool holds at its peak, beside the loaded weights.
COPIES = {"onnx": 1.0, "executorch": 2.0, "coreml": 2.0}
BYTES_WHILE_LOADED = {"quantised": 1.0, "float": 4.0}


def estimate(source: Source, plan: Plan, target: str) -> dict[str, Any]:
    """Weights and bytes of each graph, disk and peak memory in bytes. Not measured at full size: an order of magnitude."""
    root = source.root()
    graphs: dict[str, dict[str, Any]] = {}
    width = 0.5 if target == "coreml" else 1.0  # what stays in floating point is half as wide there
    for graph, recipe in source.recipes(plan).items():
        weights, size = graph_weights(root, source.family.weights_of_graph[graph], recipe, source.family.constant)
        graphs[graph] = {"weights": weights, "bytes": int(size * width) if recipe.linears is None else int(size), "recipe": recipe.name}
    disk = sum(row["bytes"] for row in graphs.values()) + sum(rows.numel() * 4 for rows in source.voices.values())
    loaded = sum(row["weights"] * BYTES_WHILE_LOADED["float" if row["recipe"] == "none" else "quantised"] for row in graphs.values())
    return {"graphs": graphs, "disk_bytes": int(disk), "memory_bytes": int(TOOLS_BYTES + loaded + COPIES[target] * disk)}
