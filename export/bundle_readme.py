"""The README of a bundle: the order of calls with names and shapes, for whoever writes a native runner."""

from __future__ import annotations

from bundle.cache import coreml_state_name
from bundle.manifest import ComponentEntry, Manifest
from bundle.spec import TensorSpec

STATES = {
    "onnx": "States are inputs `past.NAME` and outputs `present.NAME`. Bind a cache's input and output to one buffer; the others are small.\n"
    "Large weights lie beside each graph, in `GRAPH.onnx.data`. Quantised products and attention are ONNX Runtime's own operators (domain com.microsoft:\n"
    "MatMulNBits, GroupQueryAttention).\n",
    "executorch": "States are mutable buffers of a graph's program, which starts with zeros. `GRAPH.read` returns all states of a graph in the order of the\n"
    "table, of caches the rows whose numbers are its one input, int64, at most `state_rows_per_call` of `manifest.json` (no input without caches);\n"
    "`GRAPH.write` takes the same numbers, then all states, and replaces those. Link the portable operators, XNNPACK, and the custom operators of\n"
    "`extension/llm` (update_cache, update_cache_with_indices, custom_sdpa), of the version in `manifest.json`.\n",
    "coreml": "For iOS 18, macOS 15 or newer. Each entry point is a function of its package: load it with `MLModelConfiguration.functionName`.\n"
    "States are Core ML states. Make one state object per package and utterance, and give it to every function of that package. A position\n"
    "beyond caches that do not roll is yours to refuse: what a package makes of it is not defined. Integers are int32 and states half precision, as the\n"
    "tables below say, and logits of compressed weights are rounded to half; `manifest.json` has names and kinds of numbers as they are on\n"
    "every target. Compute units: `cpuAndGPU` is what the graphs are laid out for.\n",
}

ROLLING = {
    "onnx": "A cache with a window W rolls. It holds W - 1 rows of history, the row of p at p mod (W - 1), and behind them rows of the call, which\n"
    "the graph writes from row h on: h = W - 1, but the number of rows before where that is fewer and the cache has W rows in all. After each\n"
    "call move what was written at row W - 1 or behind it into the history: row h + i to row (p + i) mod (W - 1). p counts rows: `position`\n"
    "times the rows of a position; rows are moved in ascending order. Nothing else need be cleared or moved.\n",
    "executorch": "A cache with a window rolls, in a ring: the graph does it all.\n",
    "coreml": "A cache with a window rolls, in a ring: the graph does it all.\n",
}


def bundle_readme(manifest: Manifest, calls: str) -> str:
    """Markdown, complete without this project at hand. `calls` is the family's order of calls."""
    parts = [
        f"# {manifest.job.source.name}, {manifest.job.target}, {manifest.job.request.quant}\n",
        f"Made by voxport. Weights: {manifest.job.licence}. `manifest.json` has files, names, shapes and\n"
        "numbers for programs; the order of calls and what becomes of values stand here alone.\n",
        calls,
        "## Components\n",
        STATES[manifest.job.target],
        *(
            [ROLLING[manifest.job.target]]
            if any(state.window for entry in manifest.job.components for state in entry.signature.states)
            else []
        ),
        f"The decoder's caches hold {manifest.job.cache_length} rows.\n",
    ]
    return "\n".join([*parts, *(_component(entry, manifest.job.target) for entry in manifest.job.components)])


def _component(entry: ComponentEntry, target: str) -> str:
    on_coreml = target == "coreml"  # where a package has names and types of its own
    together = f" Axis 0 of everything may be up to {entry.max_batch} streams." if entry.max_batch > 1 else ""
    lines = [
        f"### {entry.name}\n",
        f"`{entry.entry_point}` of `{entry.file}`: {entry.purpose}. Recipe {entry.recipe}, {entry.bits_per_weight} bits per weight.{together}\n",
    ]
    lines += ["| | name | dtype | shape |", "|---|---|---|---|"]
    for what, tensors in (("in", entry.signature.inputs), ("out", entry.signature.outputs)):
        for tensor in tensors:
            dtype = "int32" if on_coreml and tensor.dtype == "int64" else tensor.dtype
            lines.append(f"| {what} | {tensor.name} | {dtype} | {_shape(tensor, entry)} |")
    for state in entry.signature.states:
        name, dtype = (
            (coreml_state_name(entry.graph, state.name), "float16")
            if on_coreml
            else (state.name, state.dtype)
        )
        rolls = (
            f", window {state.window}, {state.cache.rows_per_position} row{'' if state.cache.rows_per_position == 1 else 's'} a position"
            if state.cache and state.window
            else ""
        )
        lines.append(f"| state | {name} | {dtype} | {list(state.shape)}{rolls} |")
    return "\n".join(lines) + "\n"


def _shape(tensor: TensorSpec, entry: ComponentEntry) -> str:
    bounds = "; ".join(
        f"{name} {low} to {high}"
        for name, (low, high) in entry.signature.dims.items()
        if any(name == size for size in tensor.shape)
    )
    return f"[{', '.join(map(str, tensor.shape))}]" + (f" ({bounds})" if bounds else "")
