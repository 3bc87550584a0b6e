"""A speech engine in NumPy with random weights and the signatures of Voxtral-TTS, and its decoder."""

from typing import Any, cast

import numpy as np
from support.runtime.prefix_caches import private_prefix_cache
from support.runtime.toy_engine import Fault, SlotEngine, SlotStream, random_weights

from voxport.bundle.constants.voxtral_tts import VoxtralConstants
from voxport.bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from voxport.runtime.batching import BatchedDecoder
from voxport.runtime.engines.base import Arrays
from voxport.runtime.families.voxtral_tts.decoder import VoxtralPrompt
from voxport.runtime.families.voxtral_tts.task import VoxtralSlots
from voxport.runtime.prefix_cache import PrefixCache
from voxport.runtime.speech_request import SpeechRequest

DIM, BOOKS, ACOUSTIC, ROWS, FRAME, VOCAB = 8, 4, 6, 24, 5, 40

CONSTANTS = VoxtralConstants(
    sample_rate=1000,
    samples_per_frame=FRAME,
    dim=DIM,
    vocab_size=VOCAB,
    n_codebooks=BOOKS,
    semantic_codes=12,
    acoustic_levels=2001,
    euler_steps=3,
    bos_id=1,
    audio_id=24,
    begin_audio_id=25,
    first_frame="audio_token",
)


def floats(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name, "float32", shape, Kind.HIDDEN)


def ids(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name, "int64", shape, Kind.INDEX)


CACHE = StateSpec("cache", "float32", (1, ROWS, 1, DIM), CacheSpec("BSHD"))
TAIL = StateSpec("tail", "float32", (1, FRAME))
LENGTH = {"S": (1, ROWS)}
LAST = (floats("semantic_logits", 1, 20), floats("condition", 1, ACOUSTIC))
POINT = floats("x", 1, BOOKS - 1)
SIGNATURES = {
    "embed_text": Signature((ids("ids", 1, "S"),), (floats("embeddings", 1, "S", DIM),), dims=LENGTH),
    "embed_codes": Signature((ids("codes", 1, BOOKS),), (floats("embeddings", 1, 1, DIM),)),
    "prefill": Signature(
        (floats("embeddings", 1, "S", DIM), ids("position", 1)),
        (floats("hidden", 1, "S", DIM), *LAST),
        (CACHE,),
        LENGTH,
    ),
    "decode_step": Signature(
        (floats("embeddings", 1, 1, DIM), ids("position", 1)), (floats("hidden", 1, 1, DIM), *LAST), (CACHE,)
    ),
    "acoustic_step": Signature(
        (POINT, ids("step", 1), floats("condition", 1, ACOUSTIC)),
        (floats("next_x", 1, BOOKS - 1), floats("velocity", 1, 2, BOOKS - 1)),
    ),
    "codec_step": Signature(
        (ids("codes", 1, "T", BOOKS), ids("position", 1)),
        (floats("audio", 1, f"{FRAME}*T"),),
        (TAIL,),
        {"T": (1, 3)},
    ),
}


class ToyStream(SlotStream):
    def compute(self, component: str, slot: int, inputs: Arrays) -> Arrays:
        outputs: Arrays = getattr(self, f"_{component}")(slot, inputs)
        return outputs

    def _embed_text(self, slot: int, inputs: Arrays) -> Arrays:
        return {"embeddings": self.engine.weights["text"][inputs["ids"]]}

    def _embed_codes(self, slot: int, inputs: Arrays) -> Arrays:
        table = self.engine.weights["codes"]
        return {"embeddings": table[np.arange(BOOKS), inputs["codes"]].sum(axis=0, keepdims=True)}

    def _prefill(self, slot: int, inputs: Arrays) -> Arrays:
        weights, cache = self.engine.weights, self.states["cache"][slot, :, 0]
        position, hidden = int(inputs["position"]), []
        for row in inputs["embeddings"]:
            cache[position] = row
            position += 1
            hidden.append(np.tanh(cache[:position].mean(axis=0) @ weights["hidden"] + row))
        return {
            "hidden": np.stack(hidden),
            "semantic_logits": hidden[-1] @ weights["logits"],
            "condition": hidden[-1] @ weights["condition"],
        }

    _decode_step = _prefill

    def _acoustic_step(self, slot: int, inputs: Arrays) -> Arrays:
        weights = self.engine.weights
        own = np.tanh(inputs["x"] @ weights["x"])
        velocity = np.stack((own + np.tanh(inputs["condition"] @ weights["guide"]), own))
        return {"next_x": inputs["x"] + velocity[0] / 3, "velocity": velocity}

    def _codec_step(self, slot: int, inputs: Arrays) -> Arrays:
        tail, audio = self.states["tail"][slot], []
        if inputs["position"] == 0:
            tail[:] = 0
        for codes in inputs["codes"].astype(np.float32):
            tail[:] = tail / 2 + np.sin(codes @ self.engine.weights["audio"])
            audio.append(tail.copy())
        return {"audio": np.concatenate(audio)}


class ToyEngine(SlotEngine):
    signatures, stream_type = SIGNATURES, ToyStream

    def __init__(self, fault: Fault = lambda component, inputs: None) -> None:
        super().__init__(fault)
        shapes = {
            "text": (VOCAB, DIM),
            "codes": (BOOKS, 2003, DIM),
            "hidden": (DIM, DIM),
            "logits": (DIM, 20),
            "condition": (DIM, ACOUSTIC),
            "x": (BOOKS - 1, BOOKS - 1),
            "guide": (ACOUSTIC, BOOKS - 1),
            "audio": (BOOKS, FRAME),
        }
        self.weights = {name: array / np.float32(4) for name, array in random_weights(shapes).items()}


class Prompts:
    """Replaces the tokenizer: `voice_rows` rows of a voice, and `ids` ids, or one for each letter.

    There is a voice for each length of a text, or one that `is_constant`.
    """

    def __init__(self, voice_rows: int = 2, ids: int | None = None, is_constant: bool = False) -> None:
        self.voice_rows, self.ids, self.is_constant = voice_rows, ids, is_constant
        self.texts: list[str] = []  # of the prompts that were built

    def build(self, request: SpeechRequest) -> VoxtralPrompt:
        self.texts.append(request.text)
        generator = np.random.default_rng(len(request.text))
        voice = np.ones((self.voice_rows, DIM), np.float32)
        if not self.is_constant:
            voice = generator.standard_normal(voice.shape, dtype=np.float32)
        prefix = np.array([1, 25, *[24] * self.voice_rows, 26])
        return VoxtralPrompt(prefix, voice, generator.integers(0, 20, self.ids or len(request.text)))


def toy_slots(
    slots: int, engine: ToyEngine, prompts: object, prefixes: PrefixCache | None = None
) -> VoxtralSlots:
    """`prompts` is as `Prompts`. Without `prefixes` no voice has stored rows."""
    prefixes = prefixes or private_prefix_cache()
    return VoxtralSlots(engine.batched(slots), CONSTANTS, cast(Any, prompts), prefixes)


def toy_decoder(slots: int, engine: ToyEngine, prompts: object) -> BatchedDecoder[SpeechRequest]:
    return BatchedDecoder(toy_slots(slots, engine, prompts))
