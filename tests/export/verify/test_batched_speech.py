"""Batched speech: each utterance equals the same utterance spoken separately."""

from typing import Any, cast

import numpy as np
import pytest
from support.export.faulty_engines import BatchedStreams, Engines, no_fault
from support.runtime.prefix_caches import private_prefix_cache

from voxport.runtime.batching import BatchedDecoder
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.voxtral_tts.decoder import Prompt
from voxport.runtime.families.voxtral_tts.task import VoxtralSlots
from voxport.runtime.speech_request import SpeechRequest


class Prompts:
    """Replaces the tokenizer: prompts with a voice of two rows and ids that follow from the text's length."""

    def __init__(self, constants: Any) -> None:
        self.constants = constants

    def build(self, request: SpeechRequest) -> Prompt:
        constants, generator = self.constants, np.random.default_rng(len(request.text))
        marker = constants.begin_audio_id
        prefix = np.array([constants.bos_id, marker, constants.audio_id, constants.audio_id, marker])
        text = generator.integers(0, constants.audio_id, len(request.text))
        voice = generator.standard_normal((2, constants.dim), dtype=np.float32)
        return Prompt(prefix, voice, np.array([*text, marker]))


def spoken(engines: Engines, stream: Stream, requests: list[SpeechRequest]) -> list[list[np.ndarray]]:
    """Pieces of each request, from the slots of the stream."""
    prefixes = private_prefix_cache()
    decoder = BatchedDecoder(
        VoxtralSlots(stream, engines.constants, cast(Any, Prompts(engines.constants)), prefixes)
    )
    pieces = {decoder.submit(request): list[np.ndarray]() for request in requests}
    for ticket, samples in decoder.run():
        pieces[ticket].append(samples)
    return list(pieces.values())


def requests(*frames: int) -> list[SpeechRequest]:
    """Texts of different lengths, each spoken for the given number of frames."""
    return [
        SpeechRequest("a" * (3 + 2 * index), seed=index, max_frames=count, chunk_frames=2)
        for index, count in enumerate(frames)
    ]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_batched_texts_are_bit_identical_to_each_text_spoken_separately(engines: Engines, slots: int) -> None:
    """Bit-identical, because eager computes each slot separately. The texts end at different times."""
    texts, eager = requests(3, 1, 5, 2, 4), engines.eager.stream
    batched = spoken(engines, BatchedStreams(eager, slots, no_fault), texts)
    for text, found in zip(texts, batched, strict=True):
        (separate,) = spoken(engines, eager(), [text])
        assert [len(piece) for piece in found] == [len(piece) for piece in separate]
        np.testing.assert_array_equal(np.concatenate(found), np.concatenate(separate))


def test_exchanged_positions_of_two_slots_change_the_speech(engines: Engines) -> None:
    """The fault that the test above must detect: slots whose positions are exchanged."""

    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "decode_step" and not outputs:
            inputs["position"][:] = inputs["position"][::-1].copy()

    # The second prompt takes two steps. Its text is longer by more than two rows, so positions differ.
    texts = requests(5, 1, 5)[::2]
    found = spoken(engines, BatchedStreams(engines.eager.stream, 2, fault), texts)[0]
    (separate,) = spoken(engines, engines.eager.stream(), texts[:1])
    assert not np.array_equal(np.concatenate(found), np.concatenate(separate))
