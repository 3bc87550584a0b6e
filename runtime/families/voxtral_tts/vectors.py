"""The short run of `vectors.json` of Voxtral-TTS."""

import numpy as np

from voxport.bundle.constants.voxtral_tts import END_AUDIO, VoxtralConstants
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.runtime.engines.base import Arrays, Engine
from voxport.runtime.families import tokenizer_paths
from voxport.runtime.families.voxtral_tts.decoder import VoxtralDecoder
from voxport.runtime.families.voxtral_tts.task import choose_voice, default_voice, open_tokenizer
from voxport.runtime.vectors import TEXT, Samples, VectorWorkload

FRAMES = 7  # more than one call of the codec takes in `say`


def _request(bundle: Bundle, recording: Samples) -> Json:
    return {"text": TEXT, "voice": default_voice(bundle), "seed": 0, "frames": FRAMES}


def _run_vectors(engine: Engine, bundle: Bundle, constants: VoxtralConstants, request: Json) -> Arrays:
    """Ids, noise, values of the backbone, codes and samples of the first frames."""
    tokenizer = open_tokenizer(tokenizer_paths(bundle))
    voice = choose_voice(bundle, request["voice"], constants.dim)
    ids = np.array([*tokenizer.voice_prefix(len(voice)), *tokenizer.encode(request["text"])])
    generator = np.random.default_rng(request["seed"])
    shape = (request["frames"], constants.n_codebooks - 1)
    noise = generator.standard_normal(shape, dtype=np.float32)  # a frame after another
    decoder = VoxtralDecoder(engine.stream(), constants)
    decoder.read_ids(ids, voice, np.flatnonzero(ids == constants.audio_id))
    fed = np.array(request["codes"]) if "codes" in request else None
    logits, conditions, codes = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for index in range(len(noise) if fed is None else len(fed)):
        chosen = decoder.frame(noise[index : index + 1])
        if fed is None and index and chosen[0, 0] == END_AUDIO:
            break
        codes.append(chosen)
        logits.append(decoder.output.semantic_logits)
        conditions.append(decoder.output.condition)
        decoder.step(decoder.embed(fed[index : index + 1] if fed is not None else codes[-1]))
    return {
        "ids": ids,
        "noise": noise[: len(codes)],
        "semantic_logits": np.concatenate(logits),
        "condition": np.concatenate(conditions),
        "codes": np.concatenate(codes),
        "samples": decoder.decode(np.concatenate(codes) if fed is None else fed).reshape(len(codes), -1),
    }


VECTORS = VectorWorkload[VoxtralConstants](_request, _run_vectors)
