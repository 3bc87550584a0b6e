"""Time of the code predictor of Qwen3-TTS as one graph for a frame, and as one call for each code.

    predictor_calls.py --checkpoint DIR -o OUT.json

Both run on ONNX Runtime with the same recipe and greedy codes. The single step takes and returns keys and
values, which the caller passes on. It has the head of one code, and does not draw.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from voxport.bundle.manifest import ExportRequest
from voxport.bundle.spec import Kind, Signature, TensorSpec
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.export.targets.base import Graph
from voxport.model.graph import Component
from voxport.model.qwen3_tts.predictor import CodePredictor
from voxport.runtime.engines.ort import ort
from voxport.runtime.machine import describe_machine, measure_bandwidth

GRAPH = "code_predictor"
THREADS, ROUNDS, FRAMES = 2, 3, 10


class Step(nn.Module):
    """x [1, 1, width], keys and values [1, P, heads, D] per layer -> logits [1, codes], keys and values."""

    def __init__(self, predictor: CodePredictor):
        super().__init__()
        self.predictor = predictor

    def forward(self, x: torch.Tensor, *rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        own, grown = self.predictor, list[torch.Tensor]()
        y = own.projection(x)
        rotation = own.rotary(torch.full((1, 1), rows[0].shape[1]))
        for layer, block in enumerate(own.blocks):
            y, keys, values = block.attend_and_append(y, rotation, rows[2 * layer : 2 * layer + 2])
            grown += [keys, values]
        return own.heads[0](own.norm(y[:, -1])), *grown


def step_component(predictor: CodePredictor, width: int) -> Component:
    config = predictor.config
    shape = (1, "P", config.num_key_value_heads, config.head_dim)
    names = [f"{kind}_{layer}" for layer in range(config.num_hidden_layers) for kind in ("keys", "values")]
    steps = config.num_code_groups
    grown = (1, "P+1", *shape[2:])

    def example(seed: int, P: int = 2) -> dict[str, np.ndarray]:
        found = {name: np.zeros((1, P, *shape[2:]), np.float32) for name in names}
        return {"x": np.ones((1, 1, width), np.float32), **found}

    return Component(
        name="predictor_step",
        graph="predictor_step",
        signature=Signature(
            inputs=(
                TensorSpec("x", "float32", (1, 1, width), Kind.HIDDEN),
                *(TensorSpec(name, "float32", shape, Kind.HIDDEN) for name in names),
            ),
            outputs=(
                TensorSpec("logits", "float32", (1, config.vocab_size), Kind.LOGITS),
                *(TensorSpec(f"new_{name}", "float32", grown, Kind.HIDDEN) for name in names),
            ),
            dims={"P": (1, steps)},
        ),
        example=example,
        purpose="one step",
    )


def open_session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.enable_mem_reuse = THREADS, False
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return ort.InferenceSession(path, options)


def one_call(path: Path, component: Component) -> Callable[[], None]:
    session, inputs = open_session(path), component.example(0)
    inputs["codes"][:, 1:] = -1
    return lambda: session.run(["chosen"], inputs)


def call_per_code(path: Path, component: Component, tables: list[np.ndarray]) -> Callable[[], None]:
    session = open_session(path)
    first = component.example(0, P=1)
    names = [name for name in first if name != "x"]

    def frame() -> None:
        inputs = dict(first)
        for table in tables:
            logits, *rows = session.run(None, inputs)
            inputs = {"x": table[logits.argmax()][None, None], **dict(zip(names, rows, strict=True))}

    return frame


def median_ms(call: Callable[[], None]) -> float:
    call()
    times = []
    for _ in range(FRAMES):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--quant", default="w8g128")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    target = open_target("onnx")
    resolved = resolve(Source(arguments.checkpoint), ExportRequest(quant=arguments.quant, cache_length=64))
    graph = Model(resolved, target.layout).graph(GRAPH)
    predictor = graph.module
    assert isinstance(predictor, CodePredictor)
    width = graph.first.signature.inputs[0].shape[-1]
    assert isinstance(width, int)
    step = step_component(predictor, width)
    others = predictor.config.num_code_groups - 1
    tables = [np.ones((predictor.config.vocab_size, width), np.float32)] * others
    with tempfile.TemporaryDirectory() as folder:
        for each in (graph, Graph(step.name, Step(predictor), (step,))):
            target.lower(each, Path(folder))
        calls = {
            "one_call": one_call(Path(folder, f"{GRAPH}.onnx"), graph.first),
            "call_per_code": call_per_code(Path(folder, f"{step.name}.onnx"), step, tables),
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                times[name].append(median_ms(call))
    result = {
        "machine": describe_machine(THREADS, "onnxruntime"),
        "bandwidth_gb_s": measure_bandwidth(THREADS) / 1e9,
        "quant": arguments.quant,
        "codes": others,
        "frame_ms": times,
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(times))


if __name__ == "__main__":
    main()
