"""The README of a bundle: the order of calls, with names and shapes, for the author of a native runner."""

from voxport.bundle.manifest import ComponentEntry, Manifest
from voxport.bundle.spec import StateSpec, TensorSpec
from voxport.export.targets.base import Target


def bundle_readme(manifest: Manifest, calls: str, target: Target) -> str:
    """Markdown that is complete without this project. `calls` is the order of calls of the family."""
    job = manifest.job
    states = [state for entry in job.components for state in entry.signature.states]
    parts = [
        f"# {job.source.name}, {job.target}, {job.request.quant}\n",
        f"Made by voxport. Weights: {job.licence}. `manifest.json` has files, names, shapes and numbers for\n"
        "programs. The order of calls and the use of each value are described here only.\n",
        calls.rstrip("\n") + "\n",
        "## Components\n",
        target.readme_notes(has_sliding_window=any(state.window for state in states)),
    ]
    if any(state.cache for state in states):
        parts.append(f"The decoder's caches hold {job.cache_length} rows.\n")
    return "\n".join([*parts, *(_component(entry, target) for entry in job.components)])


def _component(entry: ComponentEntry, target: Target) -> str:
    purpose = f"`{entry.entry_point}` of `{entry.file}`: {entry.purpose}."
    recipe = f"Recipe {entry.recipe}, {entry.bits_per_weight} bits per weight."
    batch = f" Axis 0 of all tensors may be up to {entry.max_batch} streams." if entry.max_batch > 1 else ""
    lines = [
        f"### {entry.name}\n",
        f"{purpose} {recipe}{batch}\n",
        "| | name | dtype | shape |",
        "|---|---|---|---|",
    ]
    for direction, tensors in (("in", entry.signature.inputs), ("out", entry.signature.outputs)):
        for tensor in tensors:
            dtype = target.artifact_dtype(tensor.dtype)
            lines.append(f"| {direction} | {tensor.name} | {dtype} | {_shape(tensor, entry)} |")
    for state in entry.signature.states:
        name, dtype = target.state_name(entry.graph, state.name), target.state_dtype(state.dtype)
        lines.append(f"| state | {name} | {dtype} | {list(state.shape)}{_window(state)} |")
    return "\n".join(lines) + "\n"


def _window(state: StateSpec) -> str:
    if state.cache is None or state.window is None:
        return ""
    rows = state.cache.rows_per_position
    return f", window {state.window}, {rows} row{'' if rows == 1 else 's'} per position"


def _shape(tensor: TensorSpec, entry: ComponentEntry) -> str:
    bounds = "; ".join(
        f"{name} {low} to {high}"
        for name, (low, high) in entry.signature.dims.items()
        if any(name == size for size in tensor.shape)
    )
    return f"[{', '.join(map(str, tensor.shape))}]" + (f" ({bounds})" if bounds else "")
