"""The short run of `vectors.json` of Qwen3-ASR."""

import numpy as np

from voxport.bundle.constants.qwen3_asr import Qwen3ASRConstants
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.runtime.audio.files import PCM16_SCALE
from voxport.runtime.engines.base import Arrays, Engine
from voxport.runtime.families import read_constants, tokenizer_paths
from voxport.runtime.families.qwen3_asr.text import Tokenizer
from voxport.runtime.families.qwen3_asr.workload import values_of_recording
from voxport.runtime.vectors import TEXT, Samples, VectorWorkload, decoded, encoded

MOST_TOKENS = 32


def _request(bundle: Bundle, recording: Samples) -> Json:
    constants = read_constants(bundle.job)
    rate = constants.sample_rate
    found: Json = {"recording": encoded(recording(rate)), "rate": rate}
    return found | {"text": TEXT} if constants.aligner else found


def _run(engine: Engine, bundle: Bundle, constants: Qwen3ASRConstants, request: Json) -> Arrays:
    """The mel, rows of sound and tokens of the recording, without gain; of an aligner, the times."""
    inputs = {"audio": decoded(request["recording"]).astype(np.float32) / PCM16_SCALE}
    paths = tokenizer_paths(bundle)
    if constants.aligner:
        tokenizer, place = Tokenizer(paths, constants), constants.aligner.timestamp_id
        words = [word.strip(".") for word in request["text"].split()]
        inputs["tokens"] = np.array(
            [each for word in words for each in (*tokenizer.encode(word), place, place)]
        )
        found = values_of_recording(engine, constants, inputs, paths)
        return {name: found[name] for name in ("mel", "audio_embeds", "time_logits", "times")}
    if "tokens" in request:
        inputs["tokens"] = np.array(request["tokens"])
    found = values_of_recording(engine, constants, inputs, paths, MOST_TOKENS)
    names = ("mel", "audio_embeds", "prompt", "prefill_logits", "tokens", "last_logits")
    return {name: found[name] for name in names}


VECTORS = VectorWorkload[Qwen3ASRConstants](_request, _run, chosen="tokens")
