"""The short run of `vectors.json` of Qwen3-TTS."""

import json

import numpy as np

from voxport.bundle.constants.qwen3_tts import QwenConstants
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.bundle.qwen_tokenizer import QwenTokenizer
from voxport.runtime.engines.base import Arrays, Engine
from voxport.runtime.families import read_constants, tokenizer_paths
from voxport.runtime.families.qwen3_tts.decoder import draw_noise
from voxport.runtime.families.qwen3_tts.prompt import PromptBuilder
from voxport.runtime.families.qwen3_tts.workload import TRACE
from voxport.runtime.text.languages import AUTO
from voxport.runtime.vectors import TEXT, Samples, VectorWorkload, decoded, encoded

FRAMES = 7  # more than one call of the codec takes in `say`, and a code 0 may come again
LANGUAGE = "english"
MODES = {"base": "x_vector", "custom_voice": "speaker", "voice_design": "design"}  # by kind of model


def _request(bundle: Bundle, recording: Samples) -> Json:
    constants = read_constants(bundle.job)
    language = LANGUAGE if LANGUAGE in constants.codec_language_id else AUTO
    request: Json = {"text": TEXT, "language": language, "seed": 0, "frames": FRAMES}
    if constants.kind == "base":
        return request | {"reference": encoded(recording(constants.sample_rate))}
    if constants.kind == "voice_design":
        return request | {"instruct": "A calm voice."}
    return request | {"speaker": next(iter(constants.speakers))}


def _run_vectors(engine: Engine, bundle: Bundle, constants: QwenConstants, request: Json) -> Arrays:
    """With the sampling of the model."""
    spoken = ("text", "language", "speaker", "instruct")
    asked: Json = {"mode": MODES[constants.kind], "max_new_tokens": request["frames"] + 1, "sampling": {}}
    asked |= {name: request[name] for name in spoken if name in request}
    generator = np.random.default_rng(request["seed"])
    noise = [draw_noise(generator, constants) for _ in range(request["frames"] + 1)]
    inputs = {
        "request": np.array(json.dumps(asked)),
        "noise_c0": np.stack([each.first for each in noise]),
        "noise_cp": np.stack([each.others for each in noise]),
    }
    if "codes" in request:
        inputs["codes"] = np.array(request["codes"])
    if "reference" in request:
        inputs["ref_pcm"] = decoded(request["reference"])
    found = TRACE.run(engine, constants, inputs, False, tokenizer_paths(bundle))
    ids = PromptBuilder(QwenTokenizer(tokenizer_paths(bundle)), constants).ids(request["text"])
    codes = found["codes"]  # fewer frames if the speech ends before
    drawn = [np.concatenate((each.first, each.others.reshape(-1))) for each in noise[: len(codes)]]
    names = ("mel", "speaker_embedding", "prefill", "hidden", "codes")
    return {
        "ids": np.array(ids, np.int64),
        "noise": np.stack(drawn),
        **{name: found[name] for name in names if name in found},
        "samples": found["audio"].reshape(len(codes), -1),
    }


VECTORS = VectorWorkload[QwenConstants](_request, _run_vectors)
