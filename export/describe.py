"""The README of a bundle: the order of calls with names and shapes, for whoever writes a native runner."""

from __future__ import annotations

from runtime.bundle import ComponentEntry, Manifest, Tensor

CALLS = """\
## Order of calls

1. The prompt: `ids` = {bos}, {begin}, one {audio} per voice row, [NEXT_AUDIO_TEXT], the text's ids, [REPEAT_AUDIO_TEXT], {begin}.
   The text's ids and those two come from `tekken.json`: byte-level BPE over what its regular expression `pattern` splits (Unicode
   classes); a piece's id is its rank + `default_num_special_tokens`, and entries beyond `default_vocab_size` in all are not used. Those two are
   specials, whose ids are their ranks; specials typed in a text are text. A text is encoded as it is.
2. `embed_text(ids{extra})`, then write the voice's rows over the rows of the prompt's ids {audio}{but}.
3. `prefill(embeddings, position=0)`; its `semantic_logits` and `condition` belong to the last row.
4. For each frame:
   a. The semantic code is the argmax of `semantic_logits` without row 0 and without rows from {rows} on. 1 ends the speech.
   b. Draw `x`, {acoustic} standard normals. For `step` 0 ... {last_step}: `x = acoustic_step(x, step, condition).next_x`.
   c. Acoustic codes: round((clamp(x, -1, 1) + 1) / 2 * {top}) + 2, half to even.
   d. `embed_codes(codes)`, then `decode_step(embeddings, position)`; `position` counts rows since the prompt's first.
   e. `codec_step(codes, position)` gives {samples} samples; `position` counts frames. The bounds of T are below.
   Stop as well where d. has no row left in the caches.
5. {rate} Hz mono, clip to [-1, 1].

A new utterance starts at position 0; states need no clearing as long as they are finite.
"""
STATES = {
    "onnx": "States are inputs `past.NAME` and outputs `present.NAME`. Bind a cache's input and output to one buffer; the others are small.\n"
    "Large weights lie beside each graph, in `GRAPH.onnx.data`. Quantised products and attention are ONNX Runtime's own operators (domain com.microsoft:\n"
    "MatMulNBits, GroupQueryAttention).\n",
    "executorch": "States are mutable buffers of a graph's program, which starts with zeros. `codec.read()` returns the codec's, `codec.write(...)`\n"
    "replaces them, in the order of the table; of the caches, `backbone.read(rows)` returns the first rows, as many as the float32\n"
    "array `rows` is long, and `backbone.write(...)` replaces the first rows, as many as are given. Link the portable operators, XNNPACK,\n"
    "and the custom operators of `extension/llm` (update_cache, custom_sdpa), of the version in `manifest.json`.\n",
    "coreml": "For iOS 18, macOS 15 or newer. Each entry point is a function of its package: load it with `MLModelConfiguration.functionName`.\n"
    "States are Core ML states. Make one state object per package and utterance, and give it to every function of that package. A position\n"
    "beyond the caches is yours to refuse: what a package makes of it is not defined. Integers are int32 and states half precision, as the\n"
    "tables below say; `manifest.json` has names and kinds of numbers as they are on every target. Compute units: `cpuAndGPU` is what the\n"
    "graphs are laid out for.\n",
}


def bundle_readme(manifest: Manifest) -> str:
    """Markdown, complete without this project at hand."""
    constants = manifest.constants
    from_audio_token = manifest.switches["first_frame"] == "audio_token"
    parts = [
        f"# {manifest.source.name}, {manifest.target}, {manifest.recipe.name}\n",
        f"Made by voxport. Weights: {manifest.licence}. `manifest.json` has files, names, shapes and\n"
        "numbers for programs; the order of calls and how values become codes stand here alone.\n",
        CALLS.format(
            bos=constants["bos_id"],
            begin=constants["begin_audio_id"],
            audio=constants["audio_id"],
            extra=f" + [{constants['audio_id']}]" if from_audio_token else "",
            but="; the one behind it stays as embedded, and gives frame 0" if from_audio_token else "",
            rows=2 + constants["semantic_codes"],
            acoustic=constants["n_codebooks"] - 1,
            last_step=constants["euler_steps"] - 1,
            top=constants["acoustic_levels"] - 1,
            samples=constants["samples_per_frame"],
            rate=constants["sample_rate"],
        ),
        "## Components\n",
        STATES[manifest.target],
        f"The caches hold {manifest.cache_length} rows.\n",
    ]
    return "\n".join([*parts, *(_component(entry, manifest.target) for entry in manifest.components)])


def _component(entry: ComponentEntry, target: str) -> str:
    on_coreml = target == "coreml"  # where a package has names and types of its own
    together = f" Axis 0 of everything may be up to {entry.most_streams} streams." if entry.most_streams > 1 else ""
    lines = [
        f"### {entry.name}\n",
        f"`{entry.entry_point}` of `{entry.file}`: {entry.purpose}. Recipe {entry.recipe}, {entry.bits_per_weight} bits per weight.{together}\n",
    ]
    lines += ["| | name | dtype | shape |", "|---|---|---|---|"]
    for what, tensors in (("in", entry.inputs), ("out", entry.outputs)):
        for tensor in tensors:
            dtype = "int32" if on_coreml and tensor.dtype == "int64" else tensor.dtype
            lines.append(f"| {what} | {tensor.name} | {dtype} | {_shape(tensor, entry)} |")
    for state in entry.states:
        name, dtype = (f"{entry.graph}_{state.name}", "float16") if on_coreml else (state.name, state.dtype)
        lines.append(f"| state | {name} | {dtype} | {list(state.shape)} |")
    return "\n".join(lines) + "\n"


def _shape(tensor: Tensor, entry: ComponentEntry) -> str:
    bounds = "; ".join(f"{name} {low} to {high}" for name, (low, high) in entry.dims.items() if any(name == size for size in tensor.shape))
    return f"[{', '.join(map(str, tensor.shape))}]" + (f" ({bounds})" if bounds else "")
