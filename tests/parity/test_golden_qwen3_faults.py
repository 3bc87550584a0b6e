"""Faults that were planted in Qwen3-TTS change what the official package gives."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from parity.test_golden_qwen3 import BAR, GoldenModel, open_golden, prompt_of
from support.export.codec_faults import WRONG_VALUES, drop_a_state
from torch import nn

from voxport.model.qwen3_tts.codec.decoder import CodecDecoder
from voxport.runtime.families.qwen3_tts.decoder import QwenDecoder, sampling_of
from voxport.runtime.families.qwen3_tts.prompt import PromptEmbedder
from voxport.runtime.sampler import SamplerSettings


@pytest.fixture
def base() -> GoldenModel:
    return open_golden("base")


def predicted(golden: GoldenModel) -> np.ndarray:
    """Codes that the predictor gives after the reference's hidden values."""
    reference = golden.reference
    decoder = QwenDecoder(golden.engine.stream(), golden.constants)
    found = []
    for hidden, codes in zip(reference["xvector_hidden"], reference["xvector_codes"], strict=True):
        decoder.hidden = hidden
        found.append(decoder.predict(int(codes[0]))[0])
    return np.array(found)


@torch.no_grad()
def decoded(golden: GoldenModel, codec: CodecDecoder, frames: int = 12) -> float:
    """Distance of the samples that `codec` decodes from the reference's, in steps of one frame."""
    codes, states, pieces = golden.reference["codec_codes"][:frames], golden.codec_states(1), []
    for index, frame in enumerate(codes):
        part = torch.from_numpy(frame[None, None]).long()
        audio, *states = codec(part, torch.tensor([index]), *states)
        pieces.append(audio[0].numpy())
    samples = np.concatenate(pieces)
    return float(np.abs(samples - golden.reference["codec_audio"][: len(samples)]).max())


@contextmanager
def replaced(module: nn.Module, name: str, value: object) -> Iterator[None]:
    """Sets an attribute of a module, and restores it."""
    kept = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, kept)


def swapped(modules: nn.ModuleList, first: int, second: int) -> nn.ModuleList:
    parts = list(modules)
    parts[first], parts[second] = parts[second], parts[first]
    return nn.ModuleList(parts)


@pytest.mark.parametrize("name", ["heads", "tables"])
def test_heads_and_tables_of_the_predictor_in_another_order(base: GoldenModel, name: str) -> None:
    predictor, expected = base.modules["code_predictor"], base.reference["xvector_codes"]
    assert predicted(base).tolist() == expected.tolist()
    with replaced(predictor, name, swapped(getattr(predictor, name), 3, 4)):
        assert predicted(base).tolist() != expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*WRONG_VALUES, drop_a_state])
def test_a_fault_of_the_codec(base: GoldenModel, fault: Callable[[CodecDecoder], None]) -> None:
    """SnakeBeta, the halves and tables of the quantiser, and the state of a transposed convolution."""
    assert decoded(base, base.codec) < BAR
    faulty = deepcopy(base.codec)
    fault(faulty)
    assert decoded(base, faulty) > BAR


def test_the_projections_of_the_halves_of_the_quantiser_exchanged(base: GoldenModel) -> None:
    """Each half has its own projection."""
    weights: Any = base.root.speech_tokenizer.decoder
    first, rest = weights.quantizer.rvq_first, weights.quantizer.rvq_rest
    own = first.output_proj
    with replaced(first, "output_proj", rest.output_proj), replaced(rest, "output_proj", own):
        books = torch.cat([first.projected_entries(), rest.projected_entries()])
    faulty = deepcopy(base.codec)
    faulty.books = nn.Buffer(books.flatten(0, 1), persistent=False)
    assert decoded(base, faulty) > BAR


@pytest.mark.parametrize("step", [1, -1])
def test_codes_embedded_with_the_table_of_the_next_book(base: GoldenModel, step: int) -> None:
    """Each book but the first, which has another size."""
    embedding: Any = base.modules["embed_codes"]
    run = "xvector"
    assert spoken(base, run) == base.reference[f"{run}_codes"].tolist()
    first, *others = embedding.tables
    moved = nn.ModuleList([first, *others[step:], *others[:step]])
    with replaced(embedding, "tables", moved):
        assert spoken(base, run) != base.reference[f"{run}_codes"].tolist()


def spoken(golden: GoldenModel, run: str, **changes: Any) -> list[list[int]]:
    """Codes of a greedy run, whose decoder has other constants or settings."""
    settings = changes.pop("settings", SamplerSettings(repetition_penalty=1.05))
    constants = golden.constants.model_copy(update=changes)
    rows = PromptEmbedder(golden.engine.stream(), constants).rows(prompt_of(golden, golden.name, run))
    sampling = replace(sampling_of(golden.constants), first=settings, others=SamplerSettings())
    decoder = QwenDecoder(golden.engine.stream(), constants, sampling)
    decoder.start(rows)
    found = []
    for _ in range(12):
        codes = decoder.frame()
        if codes is None:
            break
        found.append(codes.tolist())
        decoder.step(codes)
    return found


@pytest.mark.parametrize("run", ["dialect_auto", "dialect_chinese"])
def test_the_language_of_a_dialect_ignored(run: str) -> None:
    golden = open_golden("custom_voice")
    expected = golden.reference[f"{run}_codes"].tolist()
    assert spoken(golden, run) == expected
    assert spoken(golden, run, dialects={}) != expected


def test_the_end_not_masked(base: GoldenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """At frame 0 it would win."""
    assert spoken(base, "xvector") == base.reference["xvector_codes"].tolist()
    with monkeypatch.context() as patch:
        patch.setattr("voxport.runtime.families.qwen3_tts.decoder.MIN_FRAMES", 0)
        assert spoken(base, "xvector") == []


def test_the_penalty_left_out_or_over_all_codes_of_a_frame(
    base: GoldenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = "icl_nonstreaming"
    expected = base.reference[f"{run}_codes"].tolist()
    assert spoken(base, run) == expected
    assert spoken(base, run, settings=SamplerSettings()) != expected
    step = QwenDecoder.step

    def remember_all(decoder: QwenDecoder, codes: np.ndarray) -> np.ndarray:
        fed = step(decoder, codes)
        decoder._first_codes.extend(codes[1:].tolist())
        return fed

    monkeypatch.setattr(QwenDecoder, "step", remember_all)
    assert spoken(base, run) != expected
