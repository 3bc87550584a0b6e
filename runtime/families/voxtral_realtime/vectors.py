"""The short run of `vectors.json` of Voxtral-Realtime."""

import numpy as np

from voxport.bundle.constants.voxtral_realtime import RealtimeConstants
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.runtime.audio.files import PCM16_SCALE
from voxport.runtime.engines.base import Arrays, Engine
from voxport.runtime.families import read_constants
from voxport.runtime.families.voxtral_realtime.workload import TRACE
from voxport.runtime.vectors import Samples, VectorWorkload, decoded, encoded


def _request(bundle: Bundle, recording: Samples) -> Json:
    rate = read_constants(bundle.job).sample_rate
    return {"recording": encoded(recording(rate)), "rate": rate, "delay": 0}


def _run_vectors(engine: Engine, bundle: Bundle, constants: RealtimeConstants, request: Json) -> Arrays:
    """The mel, embeddings and tokens of the recording, without gain."""
    samples = decoded(request["recording"]).astype(np.float32) / PCM16_SCALE
    inputs = {"audio": samples, "delay": np.array([request["delay"]])}
    if "tokens" in request:
        inputs["tokens"] = np.array(request["tokens"])
    found = TRACE.run(engine, constants, inputs, False, ())
    names = ("audio_embeds", "prefill_logits", "tokens", "last_logits")
    return {"mel": found["mel"].T} | {name: found[name] for name in names}  # mel: frame after frame


VECTORS = VectorWorkload[RealtimeConstants](_request, _run_vectors, chosen="tokens")
