"""What more rows cost in ONNX Runtime's products of quantised weights, at the shapes of Qwen3-TTS 0.6B.

    python -m tools.product_rows [LAYERS]

Needs onnx, onnxruntime and NumPy only. Prints ms for the products of LAYERS layers of the talker on two
threads, the least of many rounds in turn, and how many times the ms of one row that is.

4 to 8 rows of `MatMulNBits` take 2.1 to 2.5 times as long as one, although they read the same weights (4
bits, groups of 128, ONNX Runtime 1.31, AMD EPYC). 4 to 8 rows of `DynamicQuantizeMatMul` take 1.1 to 1.2
times as long as one, but its one row takes 1.8 times as long. No form is fast for one row and for several.
"""

import sys
import time
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import NodeProto, TensorProto, helper, numpy_helper

SHAPES = ((1024, 4096), (2048, 1024), (1024, 6144), (3072, 1024))  # K, N of QKV, output, gate and up, down
ROWS, ROUNDS = (1, 2, 4, 6, 8), 60
FORMS = ("4 32", "4 128", "8 32", "8 128", "MatMulIntegerToFloat", "DynamicQuantizeMatMul")
random = np.random.default_rng(0)


def product(form: str, index: int, k: int, n: int) -> tuple[NodeProto, list[np.ndarray]]:
    """The node and its constants `b` and `s`. Two numbers are bits and block of `MatMulNBits`."""
    names = [f"x{k}", f"b{index}", f"s{index}"]
    attributes: dict[str, Any] = {}
    constants = [random.integers(-127, 127, (k, n), np.int8), random.random(n, np.float32)]
    if form == "MatMulIntegerToFloat":
        names = [f"q{k}", names[1], f"qs{k}", names[2], f"qz{k}"]
    elif form != "DynamicQuantizeMatMul":
        bits, block = map(int, form.split())
        packed = random.integers(0, 255, (n, k // block, block * bits // 8), np.uint8)
        form, constants = "MatMulNBits", [packed, random.random((n, k // block), np.float32)]
        attributes = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": 4}
    return helper.make_node(form, names, [f"y{index}"], domain="com.microsoft", **attributes), constants


def session(form: str, layers: int) -> ort.InferenceSession:
    widths = sorted({k for k, _ in SHAPES})
    nodes, constants = [], []
    for k in widths if form == "MatMulIntegerToFloat" else ():
        nodes.append(helper.make_node("DynamicQuantizeLinear", [f"x{k}"], [f"q{k}", f"qs{k}", f"qz{k}"]))
    for index in range(layers * len(SHAPES)):
        node, arrays = product(form, index, *SHAPES[index % len(SHAPES)])
        nodes.append(node)
        constants += [numpy_helper.from_array(a, f"{c}{index}") for c, a in zip("bs", arrays, strict=True)]
    real = TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(f"x{k}", real, ["M", k]) for k in widths]
    outputs = [helper.make_tensor_value_info(f"y{i}", real, None) for i in range(layers * len(SHAPES))]
    graph = helper.make_graph(nodes, "products", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    return ort.InferenceSession(model.SerializeToString(), options)


def main() -> None:
    sessions = {form: session(form, int((sys.argv[1:] or ["8"])[0])) for form in FORMS}
    inputs = {m: {f"x{k}": random.random((m, k), np.float32) for k in (1024, 2048, 3072)} for m in ROWS}
    times: dict[tuple[str, int], list[float]] = {(form, rows): [] for form in FORMS for rows in ROWS}
    for _ in range(ROUNDS):
        for form, rows in times:
            started = time.perf_counter()
            sessions[form].run(None, inputs[rows])
            times[form, rows].append((time.perf_counter() - started) * 1000)
    print("rows", *ROWS, sep=" | ")
    for form in FORMS:
        found = [min(times[form, rows]) for rows in ROWS]
        print(form, *(f"{ms:.1f} ({ms / found[0]:.1f})" for ms in found), sep=" | ")


if __name__ == "__main__":
    main()
