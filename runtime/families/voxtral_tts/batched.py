"""`SpeechSlots`: utterances in the slots of one batched stream.

The backbone and the acoustic head read weights once for all.
"""

from functools import partial

import numpy as np

from runtime.batching import Fill, SlotOutput
from runtime.engines.base import Stream
from runtime.families.voxtral_tts.constants import EMPTY_AUDIO, Constants
from runtime.families.voxtral_tts.decoder import SpeechDecoder, acoustic_codes, semantic_codes
from runtime.families.voxtral_tts.prefix_cache import PrefixCache
from runtime.families.voxtral_tts.prompt import Prompt, PromptBuilder
from runtime.families.voxtral_tts.utterance import Utterance, start_utterance
from runtime.text_to_speech import SpeechRequest

BATCHED = ("embed_codes", "decode_step", "acoustic_step")  # components that one call runs for all slots


def batched_frame(
    stream: Stream, constants: Constants, decoders: dict[int, SpeechDecoder], noise: np.ndarray
) -> np.ndarray:
    """noise float32 [slots, K - 1] -> codes int64 [slots, K]. `decoders` are those of the occupied slots, one
    at least.

    A free slot repeats the condition of an occupied one; its codes mean nothing.
    """
    outputs = {slot: decoder.output for slot, decoder in decoders.items()}
    any_output = next(iter(outputs.values()))
    conditions = np.concatenate([outputs.get(slot, any_output).condition for slot in range(stream.batch)])
    semantic = np.full((stream.batch, 1), EMPTY_AUDIO, np.int64)
    for slot, output in outputs.items():
        semantic[slot] = semantic_codes(output.semantic_logits, constants)[0]
    return np.concatenate((semantic, acoustic_codes(stream, constants, noise, conditions)), axis=1)


def batched_step(stream: Stream, decoders: dict[int, SpeechDecoder], codes: np.ndarray) -> None:
    """Runs one decode step on codes int64 [slots, K].

    A free slot writes to its row 0, which the next prompt overwrites.
    """
    embeddings = stream.run("embed_codes", {"codes": codes})["embeddings"]
    positions = np.zeros(stream.batch, np.int64)
    for slot, decoder in decoders.items():
        positions[slot] = decoder.position
    outputs = stream.run("decode_step", {"embeddings": embeddings, "position": positions})
    for slot, decoder in decoders.items():
        decoder.advance({name: array[slot : slot + 1] for name, array in outputs.items()})


class SpeechSlots:
    """The operations of `runtime.batching.SlotDecoder` for speech requests."""

    def __init__(self, stream: Stream, constants: Constants, prompts: PromptBuilder, prefixes: PrefixCache):
        self._stream, self._constants, self._prompts, self._prefixes = stream, constants, prompts, prefixes
        self._utterances: dict[int, Utterance] = {}
        self._codes = np.zeros((stream.batch, constants.n_codebooks), np.int64)

    @property
    def slots(self) -> int:
        return self._stream.batch

    def prepare(self, request: SpeechRequest) -> Fill:
        """Builds the prompt. Raises UsageError."""
        return partial(self._fill, request, self._prompts.build(request))

    def _fill(self, request: SpeechRequest, prompt: Prompt, slot: int) -> None:
        stream = self._stream.slot(slot)
        utterance = start_utterance(stream, self._constants, request, prompt, self._prefixes)
        self._utterances[slot] = utterance

    def feed(self) -> None:
        batched_step(self._stream, self._decoders(), self._codes)

    def decode(self) -> None:
        noise = np.zeros((self.slots, self._constants.n_codebooks - 1), np.float32)
        for slot, utterance in self._utterances.items():
            noise[slot] = utterance.noise()
        self._codes = batched_frame(self._stream, self._constants, self._decoders(), noise)

    def take(self, slot: int) -> SlotOutput:
        return self._utterances[slot].push(self._codes[slot])

    def free(self, slot: int) -> None:
        del self._utterances[slot]

    def _decoders(self) -> dict[int, SpeechDecoder]:
        return {slot: utterance.decoder for slot, utterance in self._utterances.items()}
