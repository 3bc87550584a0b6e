"""Several utterances in one call: what the check of it finds, and that each is spoken as it is alone."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from eager_streams import Engines, Fault, failed, no_fault

from bundle.manifest import MANIFEST
from export.verify.checks import at_once
from export.verify.context import Context
from runtime.batching import BatchedDecoder
from runtime.engines.base import Arrays, Stream
from runtime.families.voxtral_tts.batched import SpeechSlots
from runtime.families.voxtral_tts.prefix_cache import PrefixCache
from runtime.families.voxtral_tts.prompt import Prompt
from runtime.text_to_speech import SpeechRequest


class SeveralStreams(Stream):
    """Streams of eager, called one after another, as an engine's that are called together; a fault may change inputs and outputs."""

    def __init__(self, make: Callable[[], Stream], count: int, fault: Fault):
        self.parts = [make() for _ in range(count)]
        super().__init__(self.parts[0].signatures)
        self.batch, self.fault = count, fault

    def slot(self, index: int) -> Stream:
        return self.parts[index]

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        self.fault(self, component, inputs, {})
        results = [
            part.run(component, {name: array[index : index + 1] for name, array in inputs.items()})
            for index, part in enumerate(self.parts)
        ]
        outputs = {name: np.concatenate([result[name] for result in results]) for name in results[0]}
        self.fault(self, component, inputs, outputs)
        return outputs

    def reset(self) -> None: ...

    def snapshot(self) -> Arrays:
        return {}

    def restore(self, states: Arrays) -> None: ...


def context(engines: Engines, fault: Fault) -> Context:
    """The fault is in what is called for three at once."""

    together = lambda count: SeveralStreams(engines.eager.stream, count, fault)
    return Context(
        engines.components,
        engines.eager.stream,
        engines.eager.stream,
        engines.reordered.stream,
        None,
        "BSHD",
        engines.source.family.chunked,
        engines.integer,
        batched=together,
        max_batch={component.name: 3 if component.batched else 1 for component in engines.components},
    )


def test_without_a_fault_several_at_once_pass(engines):
    assert failed(at_once(context(engines, no_fault))) == []
    assert {result.component for result in at_once(context(engines, no_fault))} == {
        "embed_codes",
        "decode_step",
        "acoustic_step",
    }


def one_position_for_all(stream, name, inputs, outputs):
    if name == "decode_step" and not outputs:
        inputs["position"][:] = inputs["position"][0]


def streams_change_places(stream, name, inputs, outputs):
    for array in outputs.values() if name == "embed_codes" else ():
        array[:] = np.roll(array, 1, axis=0)


def guidance_of_another_stream(stream, name, inputs, outputs):
    if name == "acoustic_step" and outputs:
        outputs["velocity"][:, 1] = np.roll(outputs["velocity"][:, 1], 1, axis=0)


def a_row_of_another_stream(stream, name, inputs, outputs):
    if name == "decode_step" and outputs:
        row = int(inputs["position"][-1])
        states = stream.parts[-1].snapshot()
        states["v_cache_1"][:, row] = stream.parts[0].snapshot()["v_cache_1"][:, row]
        stream.parts[-1].restore(states)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (one_position_for_all, {"decode_step.hidden", "decode_step.states"}),
        (streams_change_places, {"embed_codes.embeddings"}),
        (guidance_of_another_stream, {"acoustic_step.velocity"}),
        (a_row_of_another_stream, {"decode_step.states"}),
    ],
)
def test_streams_of_one_call_that_touch(engines, fault, found):
    assert found <= set(failed(at_once(context(engines, fault))))


class Prompts:
    """A prompt behind a voice of two rows, of ids that the text decides, in place of a tokenizer's."""

    def __init__(self, constants):
        self.constants = constants

    def build(self, request: SpeechRequest) -> Prompt:
        constants, generator = self.constants, np.random.default_rng(len(request.text))
        marker = constants.begin_audio_id
        prefix = np.array([constants.bos_id, marker, constants.audio_id, constants.audio_id, marker])
        text = generator.integers(0, constants.audio_id, len(request.text))
        voice = generator.standard_normal((2, constants.dim), dtype=np.float32)
        return Prompt(prefix, voice, np.array([*text, marker]))


def spoken(engines: Engines, stream: Stream, requests: list[SpeechRequest], folder) -> list[list[np.ndarray]]:
    """Pieces of each request, from the slots of the stream."""
    (folder / MANIFEST).write_text("{}")
    prefixes = PrefixCache(SimpleNamespace(folder=folder), "eager")
    decoder = BatchedDecoder(SpeechSlots(stream, engines.constants, Prompts(engines.constants), prefixes))
    pieces = {decoder.submit(request): [] for request in requests}
    for ticket, samples in decoder.run():
        pieces[ticket].append(samples)
    return list(pieces.values())


def requests(*frames: int) -> list[SpeechRequest]:
    """Texts of different lengths, each of so many frames."""
    return [
        SpeechRequest("a" * (3 + 2 * index), seed=index, max_frames=count, chunk_frames=2)
        for index, count in enumerate(frames)
    ]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_each_text_is_spoken_as_alone_whichever_ends_first(engines, tmp_path, slots):
    """To the bit, because eager computes one slot after another: five texts, whose slots become free at different times."""
    texts, eager = requests(3, 1, 5, 2, 4), engines.eager.stream
    together = spoken(engines, SeveralStreams(eager, slots, no_fault), texts, tmp_path)
    for text, found in zip(texts, together, strict=True):
        (alone,) = spoken(engines, eager(), [text], tmp_path)
        assert [len(piece) for piece in found] == [len(piece) for piece in alone]
        np.testing.assert_array_equal(np.concatenate(found), np.concatenate(alone))


def test_the_positions_of_another_slot_change_what_is_spoken(engines, tmp_path):
    """The fault that the test above must detect: slots whose positions are exchanged."""

    def fault(stream, name, inputs, outputs):
        if name == "decode_step" and not outputs:
            inputs["position"][:] = inputs["position"][::-1].copy()

    texts = requests(3, 3)
    found = spoken(engines, SeveralStreams(engines.eager.stream, 2, fault), texts, tmp_path)[0]
    (alone,) = spoken(engines, engines.eager.stream(), texts[:1], tmp_path)
    assert not np.array_equal(np.concatenate(found), np.concatenate(alone))
