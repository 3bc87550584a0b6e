"""The short run of `vectors.json` of Qwen3-TTS."""

import json

import numpy as np

from voxport.bundle.constants.qwen3_tts import QwenConstants
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.bundle.qwen_tokenizer import QwenTokenizer
from voxport.runtime.engines.base import Arrays, Engine
from voxport.runtime.families import read_constants, tokenizer_paths
from voxport.runtime.families.qwen3_tts.prompt import PromptBuilder
from voxport.runtime.families.qwen3_tts.workload import TRACE
from voxport.runtime.vectors import TEXT, Samples, VectorWorkload, decoded, encoded

FRAMES = 3


def _request(bundle: Bundle, recording: Samples) -> Json:
    constants = read_constants(bundle.job)
    request: Json = {"text": TEXT, "language": "English", "max_new_tokens": FRAMES + 1}
    if constants.kind == "base":
        return request | {"mode": "x_vector", "reference": encoded(recording(constants.sample_rate))}
    if constants.kind == "voice_design":
        return request | {"mode": "design", "instruct": "A calm voice."}
    return request | {"mode": "speaker", "speaker": next(iter(constants.speakers))}


def _run_vectors(engine: Engine, bundle: Bundle, constants: QwenConstants, request: Json) -> Arrays:
    """Greedy: no noise is drawn."""
    asked = {name: value for name, value in request.items() if name not in ("reference", "codes")}
    inputs = {"request": np.array(json.dumps(asked))}
    if "codes" in request:
        inputs["codes"] = np.array(request["codes"])
    if "reference" in request:
        inputs["ref_pcm"] = decoded(request["reference"])
    found = TRACE.run(engine, constants, inputs, False, tokenizer_paths(bundle))
    ids = PromptBuilder(QwenTokenizer(tokenizer_paths(bundle)), constants).ids(request["text"])
    samples = found["audio"].reshape(len(found["codes"]), -1)
    result = {"ids": np.array(ids, np.int64)}
    names = ("mel", "speaker_embedding", "prefill", "hidden", "codes")
    return result | {name: found[name] for name in names if name in found} | {"samples": samples}


VECTORS = VectorWorkload[QwenConstants](_request, _run_vectors)
