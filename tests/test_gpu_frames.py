"""Frames with bound buffers have the codes and the sound of the runtime, for one utterance and for two."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.export.cache import SharedBundles

from tools.gpu.frames import Frames
from tools.gpu.graphs import TOTAL, set_total, to_bfloat16
from tools.gpu.memory import Host
from voxport.bundle.constants.voxtral_tts import FIRST_CODE
from voxport.bundle.manifest import Bundle
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import Stream
from voxport.runtime.families import read_constants
from voxport.runtime.families.voxtral_tts.decoder import (
    acoustic_values,
    quantize_levels,
    semantic_codes,
)

FLOAT32_BAR = 1e-4
COUNT = 24  # frames: more than the windows of the tiny codec and encoder
Values = dict[str, np.ndarray]


def voxtral_tts(stream: Stream, constants: Any, first: Values) -> Iterator[Values]:
    logits, condition = first["logits"], first["condition"]
    for position in np.arange(COUNT)[:, None]:
        x = acoustic_values(stream, constants, first["x0"], condition)
        acoustic = quantize_levels(x, constants.acoustic_levels) + FIRST_CODE
        codes = np.concatenate((semantic_codes(logits, constants, False), acoustic), axis=1)
        sound = stream.run("codec_step", {"codes": codes[:, None], "position": position})["audio"]
        embeddings = stream.run("embed_codes", {"codes": codes})["embeddings"]
        found = stream.run("decode_step", {"embeddings": embeddings, "position": position})
        logits, condition = found["semantic_logits"], found["condition"]
        yield {"codes": codes, "audio": sound}


def qwen3_tts(stream: Stream, constants: Any, first: Values) -> Iterator[Values]:
    logits, names = first["logits"], ("noise", "temperature", "top_k", "top_p")
    hidden, settings = first["hidden"], {name: first[name] for name in names}
    for position in np.arange(COUNT)[:, None]:
        codes = np.full((1, constants.n_codebooks), -1)
        codes[0, 0] = logits[0, : constants.first_codes].argmax()
        found = stream.run("code_predictor", {"hidden": hidden, "codes": codes, **settings})
        frame = found["chosen"][:, None]
        sound = stream.run("codec_step", {"codes": frame, "position": position})["audio"]
        embeddings = stream.run("embed_codes", {"codes": frame})["embeddings"]
        found |= stream.run("decode_step", {"embeddings": embeddings, "position": position})
        logits, hidden = found["logits"], found["hidden"]
        yield {"chosen": frame[:, 0], "audio": sound}


def voxtral_realtime(stream: Stream, constants: Any, first: Values) -> Iterator[Values]:
    code = first["code"]
    for position in np.arange(COUNT)[:, None]:
        sound = stream.run("encode_chunk", {"mel": first["mel"], "position": position})["embeddings"]
        embeddings = sound + stream.run("embed_tokens", {"ids": code})["embeddings"]
        inputs = {"embeddings": embeddings, "position": position, "delay": first["delay"]}
        logits = stream.run("decode_step", inputs)["logits"]
        code = logits.argmax(axis=1)[:, None]
        yield {"code": code, "logits": logits}


class CapturedFirst:
    """A session whose first call runs three times, as ONNX Runtime's when it captures a CUDA graph."""

    def __init__(self, session: Any) -> None:
        self._session, self._count = session, 3

    def run_with_iobinding(self, *arguments: Any) -> None:
        for _ in range(self._count):
            self._session.run_with_iobinding(*arguments)
        self._count = 1


@pytest.mark.parametrize("variant", ["bound", "captured"])
@pytest.mark.parametrize(
    ("shared", "expected"),
    [("bundles", voxtral_tts), ("qwen_bundles", qwen3_tts), ("realtime_bundles", voxtral_realtime)],
)
def test_frames_are_those_of_the_runtime(
    request: pytest.FixtureRequest, shared: str, expected: Callable[..., Iterator[Values]], variant: str
) -> None:
    bundle = Bundle(request.getfixturevalue(shared) / "onnx")
    for batch in (1, 2):
        frames = Frames(bundle, variant, Host(), batch)
        if variant == "captured":
            frames._runs = [replace(run, session=CapturedFirst(run.session)) for run in frames._runs]
        first = {name: frames.read(name)[:1] for name in frames.buffers}
        stream = open_engine(bundle).stream()
        for values in expected(stream, read_constants(bundle.job), first):
            result = frames.step()
            np.testing.assert_array_equal(result, np.repeat(values[frames.chain.result], batch, axis=0))
            for name, value in values.items():  # with the bar of float32 in docs/verification.md
                error = np.abs(frames.read(name) - value).max()
                assert error <= FLOAT32_BAR * np.abs(value).max(), (name, error)


def test_products_of_float32_in_bfloat16_are_a_valid_graph(qwen_bundles: SharedBundles) -> None:
    bundle = Bundle(qwen_bundles / "onnx")
    model = onnx.load(bundle.folder / bundle.component("decode_step").file)
    to_bfloat16(model)
    onnx.checker.check_model(model, full_check=True)
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    assert products and {kinds[node.input[2]] for node in products} == {TensorProto.BFLOAT16}


def test_the_number_of_rows_in_use_is_a_constant(bundles: SharedBundles) -> None:
    """The kernel of CUDA takes it from the processor, and a copy from the device would end a capture."""
    entry = Bundle(bundles / "onnx").component("decode_step")
    model = onnx.load(bundles / "onnx" / entry.file, load_external_data=False)
    set_total(model, entry.signature)
    totals = {node.input[TOTAL] for node in model.graph.node if node.op_type == "GroupQueryAttention"}
    constants = [onnx.numpy_helper.to_array(each) for each in model.graph.initializer if each.name in totals]
    cache = entry.signature.cache
    assert cache and len(totals) == 1 and [each.tolist() for each in constants] == [[cache.rows]]
    assert all(node.op_type != "ReduceMax" for node in model.graph.node)  # which computed it
