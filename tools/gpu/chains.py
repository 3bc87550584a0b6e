"""The calls of one frame of each family, with values that stay on the device between them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxport.bundle.constants.voxtral_tts import EMPTY_AUDIO, FIRST_CODE

Constants = Any  # of any family
Width = Callable[[str, str], int]  # the last size of an output of a component

# Graphs between the components, in the language of `onnx.parser`. B is the batch, other sizes are filled in.
CHOOSE = """<ir_version: 10, opset_import: ["" : 21]>
choose (float[B, {V}] logits, float[{V}] mask, int64[B] position) => (int64[B, 1] code, int64[B] next)
<int64[1] one = {{1}}> {{
  scores = Add(logits, mask)
  code = ArgMax<axis = 1, keepdims = 1>(scores)
  next = Add(position, one)
}}"""
LEVELS = """<ir_version: 10, opset_import: ["" : 21]>
levels (int64[B, 1] first, float[B, {N}] x) => (int64[B, {K}] codes)
<float low = {{-1.0}}, float high = {{1.0}}, float two = {{2.0}}, float top = {{{top}}},
 int64 offset = {{{offset}}}>
{{
  clipped = Clip(x, low, high)
  above = Add(clipped, high)
  half = Div(above, two)
  scaled = Mul(half, top)
  rounded = Round(scaled)
  level = Cast<to = 7>(rounded)
  others = Add(level, offset)
  codes = Concat<axis = 1>(first, others)
}}"""
FILL = """<ir_version: 10, opset_import: ["" : 21]>
fill (int64[B, 1] first, int64[B, {N}] others) => (int64[B, {K}] codes) {{
  codes = Concat<axis = 1>(first, others)
}}"""
SUM = """<ir_version: 10, opset_import: ["" : 21]>
sum (float[B, 1, {D}] a, float[B, 1, {D}] b) => (float[B, 1, {D}] c) {{ c = Add(a, b) }}"""


@dataclass(frozen=True)
class Call:
    """A component of the bundle, or a graph of the chain, with the buffers of its inputs and outputs.

    A buffer has the name of the input or output unless `names` has another one. No output has the buffer of
    an input, because the first call with a CUDA graph runs the component several times. `moved` is a buffer
    that is copied to another one after the call.
    """

    component: str
    names: dict[str, str]
    moved: tuple[str, str] | None = None

    def buffer(self, name: str) -> str:
        return self.names.get(name, name)


@dataclass(frozen=True)
class Chain:
    """The calls of one frame, the graphs between them by name, and the first values of buffers by name.

    The value of `position` is relative to the first frame. The host reads `result` after each frame.
    """

    calls: list[Call]
    graphs: dict[str, str]
    values: dict[str, np.ndarray]
    result: str


CHOICE = Call("choose", {}, ("next", "position"))
BEFORE = {"position": np.array(-1)}  # of a chain that begins with `choose`


def voxtral_tts(constants: Constants, width: Width) -> Chain:
    count, steps = constants.n_codebooks, constants.euler_steps
    euler = [
        Call("acoustic_step", {"x": f"x{step}", "step": f"step{step}", "next_x": f"x{step + 1}"})
        for step in range(steps)
    ]
    calls = [
        CHOICE,
        *euler,
        Call("levels", {"first": "code", "x": f"x{steps}"}),
        Call("codec_step", {}),
        Call("embed_codes", {}),
        Call("decode_step", {"semantic_logits": "logits"}),
    ]
    top, rows = f"{constants.acoustic_levels - 1}.0", width("decode_step", "semantic_logits")
    levels = LEVELS.format(N=count - 1, K=count, top=top, offset=FIRST_CODE)
    mask = np.zeros(rows, np.float32)
    mask[EMPTY_AUDIO:FIRST_CODE] = mask[FIRST_CODE + constants.semantic_codes :] = -np.inf
    values = {"mask": mask, **BEFORE, **{f"step{step}": np.array(step) for step in range(steps)}}
    values["x0"] = np.random.default_rng(0).standard_normal(count - 1, np.float32)
    return Chain(calls, {"choose": CHOOSE.format(V=rows), "levels": levels}, values, "codes")


def qwen3_tts(constants: Constants, width: Width) -> Chain:
    """With greedy codes, and without the row of the text, which the host knows ahead."""
    count, rows = constants.n_codebooks, width("decode_step", "logits")
    calls = [
        CHOICE,
        Call("fill", {"first": "code"}),
        Call("code_predictor", {"logits": "other_logits"}),
        Call("codec_step", {"codes": "chosen"}),
        Call("embed_codes", {"codes": "chosen"}),
        Call("decode_step", {}),
    ]
    mask = np.zeros(rows, np.float32)
    mask[constants.first_codes :] = -np.inf
    one, all_codes = np.ones(1, np.float32), np.array(constants.other_codes)
    values = {"mask": mask, **BEFORE, "temperature": one, "top_k": all_codes, "top_p": one}
    values["others"] = np.array(-1)
    fill = FILL.format(N=count - 1, K=count)
    return Chain(calls, {"choose": CHOOSE.format(V=rows), "fill": fill}, values, "chosen")


def voxtral_realtime(constants: Constants, width: Width) -> Chain:
    calls = [
        Call("encode_chunk", {"embeddings": "sound"}),
        Call("embed_tokens", {"ids": "code", "embeddings": "text"}),
        Call("sum", {"a": "sound", "b": "text", "c": "embeddings"}),
        Call("decode_step", {}),
        CHOICE,
    ]
    graphs = {"sum": SUM.format(D=width("decode_step", "hidden"))}
    graphs["choose"] = CHOOSE.format(V=width("decode_step", "logits"))
    return Chain(calls, graphs, {"mel": np.array(0.5)}, "code")


def qwen3_asr(constants: Constants, width: Width) -> Chain:
    calls = [
        Call("embed_tokens", {"ids": "code"}),
        Call("decode_step", {}),
        CHOICE,
    ]
    return Chain(calls, {"choose": CHOOSE.format(V=width("decode_step", "logits"))}, {}, "code")


CHAINS: dict[str, Callable[[Constants, Width], Chain]] = {
    each.__name__: each for each in (voxtral_tts, qwen3_tts, voxtral_realtime, qwen3_asr)
}
