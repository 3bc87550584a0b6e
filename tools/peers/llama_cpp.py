"""llama.cpp with random Q4_0 weights in the shapes of Voxtral-TTS.

    pip install gguf==0.19.0 llama-cpp-python==0.3.36   # builds llama.cpp from source

`step` has six tokens, as the rows of an Euler step.
"""

import ctypes
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

DIM, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 3072, 9216, 32, 8, 128, 8320
CONTEXT, PAST = 1024, 250
PROJECTIONS = {  # outputs, inputs
    "attn_q": (HEADS * HEAD_DIM, DIM),
    "attn_k": (KV_HEADS * HEAD_DIM, DIM),
    "attn_v": (KV_HEADS * HEAD_DIM, DIM),
    "attn_output": (DIM, HEADS * HEAD_DIM),
    "ffn_gate": (HIDDEN, DIM),
    "ffn_up": (HIDDEN, DIM),
    "ffn_down": (DIM, HIDDEN),
}


def _write_gguf(path: Path, layers: int) -> None:
    """A llama model of random Q4_0 weights, without a tokenizer."""
    rng, writer = np.random.default_rng(0), gguf.GGUFWriter(path, "llama")

    def add(name: str, rows: int, columns: int) -> None:
        blocks = rng.integers(0, 256, (rows, columns // 32, 18), np.uint8)  # a float16 scale, 32 weights
        blocks[..., :2] = np.full(1, 0.003, np.float16).view(np.uint8)
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIM)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    add("token_embd.weight", VOCABULARY, DIM)
    add("output.weight", VOCABULARY, DIM)
    writer.add_tensor("output_norm.weight", np.ones(DIM, np.float32))
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(DIM, np.float32))
        for name, shape in PROJECTIONS.items():
            add(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _call(folder: Path, layers: int, rows: int, past: int, threads: int) -> Callable[[], None]:
    """A call that decodes `rows` tokens behind `past` earlier ones. Raises RuntimeError."""
    path = folder / f"q4_0-{layers}.gguf"
    if not path.exists():
        _write_gguf(path, layers)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = CONTEXT, threads, threads
    context = model and llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError(f"{path}: llama.cpp cannot open it")
    memory = llama_cpp.llama_get_memory(context)

    def decode(count: int) -> None:
        tokens = (ctypes.c_int * count)(*range(1, count + 1))
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, count)):
            raise RuntimeError(f"{path}: llama.cpp failed")
        llama_cpp.llama_synchronize(context)

    def call() -> None:
        decode(rows)
        llama_cpp.llama_memory_seq_rm(memory, -1, past, -1)

    if past:
        decode(past)
    return call


def calls(folder: Path, layers: int, threads: int) -> dict[str, Callable[[], None]]:
    """`backbone`: one token behind `PAST` others, `layers` layers and the head. `step`: three layers."""
    return {"backbone": _call(folder, layers, 1, PAST, threads), "step": _call(folder, 3, 6, 0, threads)}


def describe() -> dict[str, str]:
    return {
        "llama-cpp-python": llama_cpp.__version__,
        "gguf": version("gguf"),
        "system": llama_cpp.llama_print_system_info().decode(),
    }
