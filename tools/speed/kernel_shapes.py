"""Speed of ONNX Runtime's quantised products at the published shapes of Voxtral-TTS, in G weights per second.

    kernel_shapes.py -o docs/bench/kernels/PROCESSOR.json

A graph holds copies of one product, 48 MB with 4 bits. On a processor with a larger cache, rates are those of
that cache and not of memory. Rates are medians. The product is MatMulNBits, or without a block
MatMulIntegerToFloat and the rounding of its rows.
`layer`: all products of a block. `six_rows_ms`: time of a block for six rows, in one call or split.
`variants`: other accuracy levels and session options, measured in turn.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from voxport.runtime.engines.ort import ort
from voxport.runtime.machine import describe_machine, measure_bandwidth

SHAPES = {  # inputs, outputs
    "wq": (3072, 4096),
    "wk": (3072, 1024),
    "wqkv": (3072, 6144),
    "wo": (4096, 3072),
    "w1": (3072, 9216),
    "w13": (3072, 18432),
    "w2": (9216, 3072),
}
LAYER = ("wqkv", "wo", "w13", "w2")
ROWS = (1, 2, 3, 4, 6, 8)
SPLITS = ((6,), (3, 3), (2, 4), (2, 2, 2))
WEIGHTS = 96_000_000  # per graph: 48 MB of 4-bit integers
BLOCKS = ((4, 32), (4, 128), (8, 32), (8, 128))  # bits, block
FORMATS = (*BLOCKS, (8, None))
OPTIONS = (
    "mlas.use_lut_gemm=1",
    "mlas.qnbit.force_fp32=1",
    "session.dynamic_block_base=4",
    "session.intra_op.allow_spinning=0",
    "session.set_denormal_as_zero=1",
)
MICROSOFT = "com.microsoft"
ROUNDS = 5  # each over all numbers of rows and, for variants, over all settings in turn
CALLS = 3  # per round


class Setting(NamedTuple):
    """Attributes of the operator, and an option of the session as KEY=VALUE."""

    bits: int
    block: int | None
    accuracy_level: int = 4
    option: str = ""


def product_graph(products: list[tuple[int, int]], setting: Setting) -> bytes:
    """A model with one product for each (inputs, outputs): x of each width [rows, K] -> y0, y1, ..."""
    rng, graph = np.random.default_rng(0), onnx.GraphProto(name="products")
    for columns in {columns for columns, _ in products}:
        rows_of_input: list[str | int | None] = ["rows", columns]
        graph.input.append(helper.make_tensor_value_info(f"x{columns}", TensorProto.FLOAT, rows_of_input))
    for name, value in (("top", np.float32(127)), ("one", np.float32(1)), ("zero", np.uint8(128))):
        graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    graph.initializer.append(numpy_helper.from_array(np.array([-1]), "axis"))
    for index, (columns, rows) in enumerate(products):
        size = columns * setting.bits // 8
        blocks = columns // setting.block if setting.block else 1
        shape = (rows, blocks, size // blocks) if setting.block else (columns, rows)
        scales = rng.uniform(1e-3, 2e-3, rows * blocks).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(rng.integers(1, 256, shape, np.uint8), f"w{index}"))
        graph.initializer.append(numpy_helper.from_array(scales, f"s{index}"))
        if setting.block:
            attributes: dict[str, Any] = {
                "K": columns,
                "N": rows,
                "bits": setting.bits,
                "block_size": setting.block,
            }
            attributes |= {"accuracy_level": setting.accuracy_level, "domain": MICROSOFT}
            inputs = [f"x{columns}", f"w{index}", f"s{index}"]
            graph.node.append(helper.make_node("MatMulNBits", inputs, [f"y{index}"], **attributes))
        else:
            graph.node.extend(integer_product(f"x{columns}", index))
        graph.output.append(helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, ["rows", rows]))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    content: bytes = model.SerializeToString()
    return content


def integer_product(x: str, index: int) -> list[onnx.NodeProto]:
    """As the ONNX target lowers a linear with one scale per output channel."""

    def node(kind: str, inputs: list[str], output: str, domain: str = "") -> onnx.NodeProto:
        names = [name if name in ("top", "one", "zero", "axis", x) else f"{name}{index}" for name in inputs]
        return helper.make_node(kind, names, [f"{output}{index}"], domain=domain)

    return [
        node("Abs", [x], "abs"),
        node("ReduceMax", ["abs", "axis"], "max"),
        node("Div", ["top", "max"], "inverse"),
        node("Mul", [x, "inverse"], "scaled"),
        node("QuantizeLinear", ["scaled", "one", "zero"], "q"),
        node("MatMulIntegerToFloat", ["q", "w", "one", "s", "zero", "zero"], "product", MICROSOFT),
        node("Div", ["max", "top"], "scale"),
        node("Mul", ["product", "scale"], "y"),
    ]


def open_session(products: list[tuple[int, int]], setting: Setting, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    if setting.option:
        options.add_session_config_entry(*setting.option.split("="))
    return ort.InferenceSession(product_graph(products, setting), options, ["CPUExecutionProvider"])


def seconds_by_rows(
    products: list[tuple[int, int]], settings: Sequence[Setting], rows: tuple[int, ...], threads: int
) -> list[dict[int, float]]:
    """Median seconds of all products once, for each number of rows.

    The settings take turns in each round. Only one has a session, because threads of another one would wait
    actively beside it.
    """
    rng, widths = np.random.default_rng(1), {columns for columns, _ in products}
    times: list[dict[int, list[float]]] = [{count: [] for count in rows} for _ in settings]
    for _ in range(ROUNDS):
        for setting, found in zip(settings, times, strict=True):
            session = open_session(products, setting, threads)
            for count in rows:
                inputs = {f"x{width}": rng.standard_normal((count, width), np.float32) for width in widths}
                session.run(None, inputs)
                for _ in range(CALLS):
                    started = time.perf_counter()
                    session.run(None, inputs)
                    found[count].append(time.perf_counter() - started)
            del session
    return [{count: float(np.median(found[count])) for count in rows} for found in times]


def rate(names: tuple[str, ...], seconds: dict[int, float]) -> dict[int, float]:
    weights = sum(math.prod(SHAPES[name]) for name in names)
    return {count: round(weights / value / 1e9, 1) for count, value in seconds.items()}


def measure_format(setting: Setting, threads: int) -> dict[str, Any]:
    """Rates of every shape for every number of rows."""
    seconds: dict[str, dict[int, float]] = {}  # of one product
    for name, shape in SHAPES.items():
        copies = math.ceil(WEIGHTS / math.prod(shape))
        (times,) = seconds_by_rows([shape] * copies, [setting], ROWS, threads)
        seconds[name] = {count: value / copies for count, value in times.items()}
    layer = {count: sum(seconds[name][count] for name in LAYER) for count in ROWS}
    splits = {"+".join(map(str, split)): sum(layer[part] for part in split) for split in SPLITS}
    return {
        **setting._asdict(),
        "shapes": {name: rate((name,), by_rows) for name, by_rows in seconds.items()},
        "layer": rate(LAYER, layer),
        "six_rows_ms": {name: round(value * 1e3, 2) for name, value in splits.items()},
    }


def measure_variants(
    settings: Sequence[Setting], threads: int, names: tuple[str, ...] = LAYER
) -> list[dict[str, Any]]:
    """Rates of one copy of each product, for 1 and 6 rows."""
    found = seconds_by_rows([SHAPES[name] for name in names], settings, (1, 6), threads)
    return [
        {**setting._asdict(), "products": names, "rates": rate(names, seconds)}
        for setting, seconds in zip(settings, found, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    threads, levels = arguments.threads, [Setting(*part, level) for level in (1, 0) for part in BLOCKS]
    options = [[Setting(*part, option=option) for option in ("", *OPTIONS)] for part in BLOCKS[:2]]
    result = {
        "machine": describe_machine(threads, "onnxruntime"),
        "bandwidth_gb_s": measure_bandwidth(threads) / 1e9,
        "formats": [measure_format(Setting(*part), threads) for part in FORMATS],
        "variants": [row for settings in options for row in measure_variants(settings, threads)]
        + measure_variants(levels, threads, ("wo",)),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
