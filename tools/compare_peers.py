"""Bundles of Voxtral-TTS and llama.cpp's Q4_0 on the same shapes, in one run on one machine.

    pip install gguf==0.19.0 llama-cpp-python==0.3.36   # builds llama.cpp from source
    compare_peers.py BUNDLE... --folder FOLDER -o docs/bench/peers/PROCESSOR.json

llama.cpp runs random weights in the shapes of the backbone. `backbone`: one token behind 250 others, as many
layers as the bundles have, and the semantic head. `step`: six tokens, three layers, as in an Euler step. The
bundles compute two rows instead of six in most of the last of these layers. Medians in ms.
"""

import argparse
import ctypes
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from timeit import timeit
from typing import Any

import gguf
import llama_cpp
import numpy as np

from bundle.manifest import Bundle
from runtime.bench import bench
from runtime.engines.base import EngineOptions
from runtime.machine import describe_machine, measure_bandwidth

DIM, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 3072, 9216, 32, 8, 128, 8320
CONTEXT = 1024
PROJECTIONS = {  # outputs, inputs
    "attn_q": (HEADS * HEAD_DIM, DIM),
    "attn_k": (KV_HEADS * HEAD_DIM, DIM),
    "attn_v": (KV_HEADS * HEAD_DIM, DIM),
    "attn_output": (DIM, HEADS * HEAD_DIM),
    "ffn_gate": (HIDDEN, DIM),
    "ffn_up": (HIDDEN, DIM),
    "ffn_down": (DIM, HIDDEN),
}
ROUNDS, CALLS = 3, 20


def write_gguf(path: Path, layers: int) -> None:
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


def llama_call(folder: Path, layers: int, rows: int, past: int, threads: int) -> Callable[[], None]:
    """A call that decodes `rows` tokens behind `past` earlier ones. Raises RuntimeError."""
    path = folder / f"q4_0-{layers}.gguf"
    if not path.exists():
        write_gguf(path, layers)
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


def median_ms(call: Callable[[], None]) -> float:
    return float(np.median([timeit(call, number=1) for _ in range(CALLS)][2:])) * 1e3


def bundle_ms(folder: Path, threads: int) -> dict[str, float]:
    """Medians of a backbone step and of an Euler step."""
    components = bench(folder, EngineOptions(threads), CALLS, 20)["components"]
    return {
        "backbone": components["decode_step"]["median_ms"],
        "step": components["acoustic_step"]["median_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the models of llama.cpp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    threads, first = arguments.threads, Bundle(arguments.bundles[0])
    layers = sum(state.cache is not None for state in first.component("decode_step").signature.states) // 2
    shapes = {"backbone": (layers, 1, 250), "step": (3, 6, 0)}  # layers, rows, earlier tokens
    peer = {name: llama_call(arguments.folder, *shape, threads) for name, shape in shapes.items()}
    rounds: dict[str, list[dict[str, float]]] = {}
    for _ in range(ROUNDS):
        times = {name: median_ms(call) for name, call in peer.items()}
        rounds.setdefault("llama.cpp q4_0", []).append(times)
        for folder in arguments.bundles:
            job = Bundle(folder).job
            rounds.setdefault(f"{job.target} {job.request.quant}", []).append(bundle_ms(folder, threads))
    result: dict[str, Any] = {
        "machine": describe_machine(threads, "onnxruntime"),
        "bandwidth_gb_s": measure_bandwidth(threads) / 1e9,
        "peers": {"llama-cpp-python": llama_cpp.__version__, "gguf": version("gguf")},
        "llama_cpp": llama_cpp.llama_print_system_info().decode(),
        "backbone_layers": layers,
        "rounds_ms": rounds,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
