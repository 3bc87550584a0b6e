"""The model in eager: streaming equals whole, the receptive field, steps equal prefill, levels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from voxport.bundle.manifest import ExportRequest
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.verify.eager import EagerEngine
from voxport.model.graph import Component
from voxport.runtime.families.voxtral_tts.decoder import quantize_levels

FRAMES, SAMPLES = 26, 1920
RECEPTIVE_FIELD = (
    21  # frames before a frame that its samples depend on, with two layers a stage and windows 2, 4, 8, 16
)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> tuple[EagerEngine, dict[str, Component]]:
    source = Source(checkpoint)
    model = Model(resolve(source, ExportRequest(cache_length=64)), "BSHD")
    return EagerEngine(model.components, model.module, "BSHD"), {c.name: c for c in model.components}


@pytest.fixture(scope="module")
def codes(engine: tuple[EagerEngine, dict[str, Component]]) -> np.ndarray:
    return engine[1]["codec"].example(4, T=FRAMES)["codes"]


def decode(
    engine: tuple[EagerEngine, dict[str, Component]], codes: np.ndarray, sizes: list[int]
) -> np.ndarray:
    stream, position, pieces = engine[0].stream(), 0, []
    for size in sizes:
        part = codes[:, position : position + size]
        pieces.append(stream.run("codec_step", {"codes": part, "position": np.array([position])})["audio"])
        position += size
    return np.concatenate(pieces, axis=1)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_chunks_of_any_sizes_add_up_to_the_whole(
    engine: tuple[EagerEngine, dict[str, Component]], codes: np.ndarray, sizes: list[int]
) -> None:
    sizes = [size for size in sizes if size] or [1]
    while sum(sizes) > FRAMES:
        sizes.pop()
    sizes = sizes or [1]
    whole = decode(engine, codes[:, : sum(sizes)], [sum(sizes)])
    chunked = decode(engine, codes, sizes)
    assert np.abs(chunked - whole).max() <= 1e-5 * np.abs(whole).max()


def test_a_second_utterance_does_not_depend_on_the_first(
    engine: tuple[EagerEngine, dict[str, Component]], codes: np.ndarray
) -> None:
    stream = engine[0].stream()
    stream.run("codec_step", {"codes": codes[:, ::-1].copy(), "position": np.array([0])})
    again = stream.run("codec_step", {"codes": codes, "position": np.array([0])})["audio"]
    np.testing.assert_array_equal(again, decode(engine, codes, [FRAMES]))


def test_the_codec_is_causal(engine: tuple[EagerEngine, dict[str, Component]], codes: np.ndarray) -> None:
    changed = codes.copy()
    changed[:, 10:] = codes[:, 10:][:, ::-1]
    first, second = decode(engine, codes, [FRAMES]), decode(engine, changed, [FRAMES])
    assert np.abs(first[:, : 10 * SAMPLES] - second[:, : 10 * SAMPLES]).max() < 1e-6
    assert np.abs(first[:, 10 * SAMPLES : 11 * SAMPLES] - second[:, 10 * SAMPLES : 11 * SAMPLES]).max() > 1e-3


def test_single_steps_equal_a_prefill(engine: tuple[EagerEngine, dict[str, Component]]) -> None:
    runner, components = engine
    inputs = components["prefill"].example(3, S=12)
    whole = runner.stream().run("prefill", inputs)["hidden"]
    stream = runner.stream()
    rows = [
        stream.run(
            "decode_step", {"embeddings": inputs["embeddings"][:, i : i + 1], "position": np.array([i])}
        )["hidden"]
        for i in range(12)
    ]
    np.testing.assert_allclose(np.concatenate(rows, axis=1), whole, atol=2e-5)


def test_only_the_conditional_row_depends_on_the_condition(
    engine: tuple[EagerEngine, dict[str, Component]],
) -> None:
    runner, components = engine
    first, second = (components["acoustic_step"].example(seed) for seed in (1, 2))
    changed = {**first, "condition": second["condition"]}
    a, b = (runner.stream().run("acoustic_step", inputs)["velocity"][0] for inputs in (first, changed))
    assert np.abs(a[0] - b[0]).max() > 1e-3
    np.testing.assert_allclose(a[1], b[1], atol=1e-6)


def test_levels_round_half_to_even_and_are_undone_by_the_codec() -> None:
    x = torch.linspace(-1, 1, 21).numpy()
    np.testing.assert_array_equal(quantize_levels(x, 21), np.arange(21))
    np.testing.assert_array_equal(quantize_levels(np.array([-9.0, 9.0, -0.75, -0.25]), 21), [0, 20, 2, 8])
