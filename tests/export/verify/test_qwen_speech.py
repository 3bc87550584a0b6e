"""Qwen3-TTS in eager: speech of slots, checks of the choices inside graphs, and what they find."""

from dataclasses import replace

import numpy as np
import pytest
from support.export.faulty_engines import Engines, Fault, failed, no_fault
from support.runtime.prefix_caches import private_prefix_cache

from voxport.export.verify.code_checks import check_codes
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.runtime.batching import BatchedDecoder, Status
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.qwen3_tts.decoder import ReferenceStates
from voxport.runtime.families.qwen3_tts.prompt import PromptEmbedder, QwenPrompt, Reference
from voxport.runtime.families.qwen3_tts.task import QwenSlots
from voxport.runtime.speech_request import SpeechRequest

CACHE = 96


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines(random_checkpoint("qwen3_tts"), "none", cache=CACHE)


def prompt_of(engines: Engines, request: SpeechRequest) -> QwenPrompt:
    """A prompt whose mode and ids follow from the text's length."""
    constants, generator = engines.constants, np.random.default_rng(len(request.text))
    text = generator.integers(0, 200, len(request.text))
    vector = generator.standard_normal(constants.dim, dtype=np.float32)
    codes = generator.integers(0, constants.other_codes, (4, constants.n_codebooks))
    prompts = (
        QwenPrompt(text, 10, "english", vector),
        QwenPrompt(text, 10, "auto", vector, streaming=False),
        QwenPrompt(text, 10, "german", vector, reference=Reference(text[:2], codes)),
        QwenPrompt(text, 10, instruct=text[:3]),
    )
    return prompts[len(request.text) % len(prompts)]


def spoken(engines: Engines, stream: Stream, requests: list[SpeechRequest]) -> list[np.ndarray]:
    slots = QwenSlots(
        stream,
        engines.constants,
        lambda request: prompt_of(engines, request),
        private_prefix_cache(),
        ReferenceStates(),
    )
    decoder = BatchedDecoder(slots)
    pieces = {decoder.submit(request): [np.zeros(0, np.float32)] for request in requests}
    for ticket, samples in decoder.run():
        pieces[ticket].append(samples)
    assert all(ticket.status in (Status.LIMIT, Status.END) for ticket in pieces)
    return [np.concatenate(found) for found in pieces.values()]


def requests(*frames: int) -> list[SpeechRequest]:
    """Texts of different lengths, and so of different modes."""
    return [
        SpeechRequest("a" * (3 + index), seed=index, max_frames=count, chunk_frames=2)
        for index, count in enumerate(frames)
    ]


def test_chunks_of_any_size_give_the_same_speech(engines: Engines) -> None:
    """The codec's convolutions sum in another order for other lengths, so equal up to rounding."""
    for text in requests(7, 7, 7, 7):
        whole, *others = (
            spoken(engines, engines.eager.stream(), [replace(text, chunk_frames=size)])[0]
            for size in (7, 1, 3)
        )
        for found in others:
            np.testing.assert_allclose(found, whole, atol=1e-5)


def codes_of(engines: Engines, fault: Fault) -> list[str]:
    return failed(check_codes(engines.context(fault)))


def test_a_right_artifact_passes(engines: Engines) -> None:
    assert codes_of(engines, no_fault) == []


def _exchanged_books(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "code_predictor":
        outputs["logits"] = outputs["logits"][:, ::-1].copy()


def _without_top_k(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "code_predictor" and (inputs["codes"][:, 1:] < 0).all():
        scores = outputs["logits"] / inputs["temperature"][0] + inputs["noise"]
        outputs["chosen"][:, 1:] = scores.argmax(axis=-1)


def _noise_of_another_book(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "code_predictor" and (inputs["codes"][:, 1:] < 0).all():
        scores = outputs["logits"] / inputs["temperature"][0] + inputs["noise"][:, ::-1]
        outputs["chosen"][:, 1:] = scores.argmax(axis=-1)


def _another_first_code(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "decode_step":
        outputs["logits"] = np.roll(outputs["logits"], 1, axis=-1)


def _exchanged_quantisers(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "speech_encoder":
        outputs["codes"] = outputs["codes"][..., ::-1].copy()


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (_exchanged_books, {"other codes, teacher-forced", "drawn codes"}),
        (_without_top_k, {"drawn codes"}),
        (_noise_of_another_book, {"drawn codes"}),
        (_another_first_code, {"codes, teacher-forced"}),
        (_exchanged_quantisers, {"codes of a recording"}),
    ],
)
def test_a_wrong_choice_is_found(engines: Engines, fault: Fault, found: set[str]) -> None:
    assert set(codes_of(engines, fault)) == found


def test_a_near_choice_of_the_encoder_may_differ(engines: Engines) -> None:
    """Eager says that the first book of all frames was a tie, so it may differ, and no other quantiser."""

    def artifact(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "speech_encoder":
            outputs["codes"][..., 0] += 1

    def eager(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "speech_encoder":
            outputs["margins"][..., 0] = 0

    context = engines.context(artifact, eager=engines.faulty(eager))
    assert failed(check_codes(context)) == []


def test_the_fixed_part_of_a_prompt_does_not_depend_on_its_text(engines: Engines) -> None:
    """Every mode. Up to the order of additions, which depends on the number of rows of a matrix product.

    Fixed are the ids of an instruction, 3 of the role, the row of a speaker, 5 other rows of codes (4 with
    the language `auto`), and the 2 rows of a transcript.
    """
    embedder = PromptEmbedder(engines.eager.stream(), engines.constants)
    for length, fixed in ((4, 3 + 1 + 5), (5, 3 + 1 + 4), (6, 3 + 1 + 5 + 2), (7, 3 + 3 + 4)):
        first = prompt_of(engines, SpeechRequest("a" * length))
        other = replace(first, text=np.array([9, 8, 7]))
        one, two = embedder.rows(first), embedder.rows(other)
        assert one.prefix_rows == two.prefix_rows == fixed
        bar = one.prefill.shape[-1] * np.finfo(np.float32).eps * np.abs(one.prefill).max()
        np.testing.assert_allclose(
            one.prefill[: one.prefix_rows], two.prefill[: two.prefix_rows], rtol=0, atol=bar
        )
        assert not np.array_equal(one.prefill[one.prefix_rows], two.prefill[two.prefix_rows])


def test_stored_rows_of_a_prefix_give_the_same_speech(engines: Engines) -> None:
    prefixes, results = private_prefix_cache(), []
    for _ in range(2):
        slots = QwenSlots(
            engines.eager.stream(),
            engines.constants,
            lambda request: prompt_of(engines, request),
            prefixes,
            ReferenceStates(),
        )
        decoder = BatchedDecoder(slots)
        for text in requests(5, 5, 5, 5):
            decoder.submit(text)
        results.append(np.concatenate([samples for _, samples in decoder.run()]))
    np.testing.assert_array_equal(*results)
