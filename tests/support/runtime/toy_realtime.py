"""A listening engine in NumPy with random weights, and signatures of Voxtral-Realtime."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from support.runtime.toy_engine import SlotEngine, SlotStream, random_weights

from voxport.bundle.constants.voxtral_realtime import RealtimeConstants
from voxport.bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from voxport.runtime.engines.base import Arrays
from voxport.runtime.families.voxtral_realtime.task import VoxtralSpeechToText

DIM, VOCAB, MELS, TOKEN, WINDOW, FRAMES = 8, 24, 8, 1280, 12, 8
DELAYS_MS = (80, 240)
FREQUENT = 10  # the token that the random weights choose most often

CONSTANTS = RealtimeConstants(
    sample_rate=16000,
    samples_per_token=TOKEN,
    n_mels=MELS,
    hop_length=160,
    window_size=400,
    log_mel_least=-6.5,
    dim=DIM,
    vocab_size=VOCAB,
    left_pad_tokens=5,
    flush_tokens=2,
    bos_id=1,
    eos_id=2,
    pad_id=3,
    word_id=4,
    first_text_id=5,
    delays_ms=DELAYS_MS,
    delays=(1, 3),
)


def spec(name: str, dtype: Literal["float32", "int64"], *shape: int | str) -> TensorSpec:
    return TensorSpec(name, dtype, shape, Kind.HIDDEN if dtype == "float32" else Kind.INDEX)


AUDIO_STATE = StateSpec("audio_state", "float32", (1, 1, DIM))
CACHE = StateSpec("cache", "float32", (1, WINDOW, 1, DIM), CacheSpec("BSHD", WINDOW))
POSITION, DELAY = spec("position", "int64", 1), spec("delay", "int64", 1)


def encoder(tokens: int | str) -> Signature:
    inputs = (spec("mel", "float32", 1, tokens, FRAMES, MELS), POSITION)
    outputs = (spec("embeddings", "float32", 1, tokens, DIM),)
    sized = CacheSpec("BSHD", 100, 1, 4)  # bounds the length of a stream; its rows are not used
    states = (AUDIO_STATE, StateSpec("seen", "float32", (1, 103, 1, 1), sized))
    return Signature(inputs, outputs, states, {"T": (1, 4)} if tokens == "T" else {})


def decoder(rows: int | str) -> Signature:
    inputs = (spec("embeddings", "float32", 1, rows, DIM), POSITION, DELAY)
    outputs = (spec("hidden", "float32", 1, rows, DIM), spec("logits", "float32", 1, VOCAB))
    return Signature(inputs, outputs, (CACHE,), {"S": (1, 9)} if rows == "S" else {})


IDS = Signature(
    (spec("ids", "int64", 1, "S"),), (spec("embeddings", "float32", 1, "S", DIM),), dims={"S": (1, 9)}
)
SIGNATURES = {
    "embed_tokens": IDS,
    "audio_encoder": encoder("T"),
    "encode_chunk": encoder(1),
    "prefill": decoder("S"),
    "decode_step": decoder(1),
}


class ToyStream(SlotStream):
    """The cache is staged: a row is compared with the last WINDOW - 1 rows, and then replaces the oldest."""

    def __init__(self, engine: SlotEngine, states: Arrays) -> None:
        super().__init__(engine, states)
        self._active: Sequence[int] = range(self.batch)

    def compute(self, component: str, slot: int, inputs: Arrays) -> Arrays:
        if "mel" in inputs:
            return self._encode(slot, inputs)
        return self._embed(slot, inputs) if component == "embed_tokens" else self._decode(slot, inputs)

    def run_active(self, component: str, inputs: Arrays, active: Sequence[int]) -> Arrays:
        self._active = active
        try:
            return self.run(component, inputs)
        finally:
            self._active = range(self.batch)

    def _embed(self, slot: int, inputs: Arrays) -> Arrays:
        return {"embeddings": self.engine.weights["tokens"][inputs["ids"]] / 4}

    def _encode(self, slot: int, inputs: Arrays) -> Arrays:
        found, audio_state = [], self.states["audio_state"][slot]
        for mel in inputs["mel"]:
            audio_state[:] = np.tanh(mel.reshape(1, -1) @ self.engine.weights["mel"] / 2 + audio_state / 4)
            found.append(audio_state[0].copy())
        return {"embeddings": np.stack(found)}

    def _decode(self, slot: int, inputs: Arrays) -> Arrays:
        weights, cache, found = self.engine.weights, self.states["cache"][slot, :, 0], []
        for index, row in enumerate(inputs["embeddings"]):
            position = int(inputs["position"]) + index
            seen = np.arange(max(0, position - WINDOW + 1), position)
            rows = cache[seen % (WINDOW - 1)] * np.exp2(-(position - seen) / 4)[:, None].astype(np.float32)
            hidden = np.tanh(
                (row + rows.sum(axis=0) + weights["delays"][inputs["delay"]]) @ weights["hidden"]
            )
            if slot in self._active:
                cache[position % (WINDOW - 1)] = hidden
            found.append(hidden)
        return {"hidden": np.stack(found), "logits": found[-1] @ weights["head"]}


class ToyEngine(SlotEngine):
    signatures, stream_type = SIGNATURES, ToyStream

    def __init__(self) -> None:
        super().__init__()
        shapes = {
            "tokens": (VOCAB, DIM),
            "mel": (FRAMES * MELS, DIM),
            "hidden": (DIM, DIM),
            "head": (DIM, VOCAB),
            "delays": (len(DELAYS_MS), DIM),
        }
        self.weights = random_weights(shapes)


def task_with_many_words() -> VoxtralSpeechToText:
    """Writes many words: [STREAMING_WORD] and the most frequent token change places. A token is a letter."""
    engine, order = ToyEngine(), np.arange(VOCAB)
    order[[CONSTANTS.word_id, FREQUENT]] = FREQUENT, CONSTANTS.word_id
    engine.weights |= {"tokens": engine.weights["tokens"][order], "head": engine.weights["head"][:, order]}
    return VoxtralSpeechToText(engine, CONSTANTS, lambda token: bytes([ord("a") + token]), True, max_live=4)


def noise_of_varying_level(count: int, seed: int = 1) -> np.ndarray:
    """Noise whose level changes every 80 ms, as 16-bit integers [count]. Its peak is near full scale."""
    generator = np.random.default_rng(seed)
    levels = np.repeat(10 ** generator.uniform(-3, 0, count // TOKEN + 1), TOKEN)[:count]
    samples = levels * generator.standard_normal(count)
    scaled: np.ndarray = 30000 * samples / np.abs(samples).max()
    return scaled.astype(np.int16)
