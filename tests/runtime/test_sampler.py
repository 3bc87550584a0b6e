"""Sampled ids: greedy, deterministic for given noise, and distributed as a direct formula gives."""

from typing import Any

import numpy as np
import pytest

from voxport.bundle.errors import UsageError
from voxport.runtime.sampler import SamplerSettings, gumbel_noise, sample

DRAWS, IDS = 40_000, 9
SETTINGS = [
    SamplerSettings(temperature=1.0),
    SamplerSettings(temperature=0.6, top_k=4),
    SamplerSettings(temperature=1.3, top_p=0.7),
    SamplerSettings(temperature=0.9, top_k=5, top_p=0.8, repetition_penalty=1.4),
]


def logits(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(IDS).astype(np.float32) * 2


def expected(row: np.ndarray, settings: SamplerSettings, previous: list[int]) -> np.ndarray:
    """Probabilities of the ids, one id at a time in Python floats."""
    values = [float(value) for value in row]
    for index in set(previous):
        penalty = settings.repetition_penalty
        values[index] = values[index] / penalty if values[index] > 0 else values[index] * penalty
    weights = {index: np.exp(value / settings.temperature) for index, value in enumerate(values)}
    ranked = sorted(weights, key=lambda index: -weights[index])
    if settings.top_k:
        ranked = ranked[: settings.top_k]
    total, kept = sum(weights[index] for index in ranked), list[int]()
    for index in ranked:
        if sum(weights[each] for each in kept) / total >= settings.top_p:
            break
        kept.append(index)
    total = sum(weights[index] for index in kept)
    return np.array([weights[index] / total if index in kept else 0.0 for index in range(IDS)])


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_frequencies_equal_those_of_the_direct_formula(settings: SamplerSettings, seed: int) -> None:
    row, previous = logits(seed), [1, 4, 4]
    noise = gumbel_noise(np.random.default_rng(seed), (DRAWS, IDS))
    found = sample(np.tile(row, (DRAWS, 1)), settings, noise, [np.array(previous)] * DRAWS)
    frequencies = np.bincount(found, minlength=IDS) / DRAWS
    probabilities = expected(row, settings, previous)
    np.testing.assert_allclose(frequencies, probabilities, atol=5 / np.sqrt(DRAWS) / 2)
    assert not frequencies[probabilities == 0].any()


def test_greedy_is_the_argmax_whatever_the_noise() -> None:
    rows = np.stack([logits(seed) for seed in range(50)])
    noise = gumbel_noise(np.random.default_rng(0), rows.shape)
    found = sample(rows, noise=noise)
    np.testing.assert_array_equal(found, rows.argmax(axis=1))
    assert found.dtype == np.int64
    ties = np.array([[0.0, 3.0, 3.0]], np.float32)
    assert sample(ties) == [1]


def test_given_noise_gives_the_same_ids_row_by_row() -> None:
    settings = SamplerSettings(temperature=0.8, top_k=6, top_p=0.9, repetition_penalty=1.2)
    rows = np.stack([logits(seed) for seed in range(20)])
    noise = gumbel_noise(np.random.default_rng(3), rows.shape)
    previous = [np.arange(index % 4) for index in range(20)]
    found = sample(rows, settings, noise, previous)
    single = [sample(rows[i : i + 1], settings, noise[i : i + 1], previous[i : i + 1])[0] for i in range(20)]
    np.testing.assert_array_equal(found, single)


def test_masked_ids_are_never_chosen() -> None:
    rows = np.tile(logits(), (2000, 1))
    rows[:, :6] = -np.inf
    noise = gumbel_noise(np.random.default_rng(0), rows.shape)
    for settings in SETTINGS:
        assert sample(rows, settings, noise, [np.array([2])] * 2000).min() >= 6


def test_previous_ids_become_less_probable_also_greedily() -> None:
    row = np.array([[2.0, 1.9, -1.0]], np.float32)
    settings = SamplerSettings(repetition_penalty=1.2)
    assert sample(row, settings) == [0] and sample(row, settings, None, [np.array([0])]) == [1]
    assert sample(row, settings, None, [np.array([])]) == [0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": np.inf},
        {"temperature": np.nan},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": np.inf},
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SamplerSettings(**wrong)


@pytest.mark.parametrize("top_p", [1.0, 0.5])
@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-10])
def test_a_temperature_near_0_chooses_the_largest_logit(temperature: float, top_p: float) -> None:
    rows = np.stack([logits(seed) * 100 for seed in range(50)])
    noise = gumbel_noise(np.random.default_rng(0), rows.shape)
    found = sample(rows, SamplerSettings(temperature, top_k=4, top_p=top_p), noise)
    np.testing.assert_array_equal(found, rows.argmax(axis=1))


def test_a_huge_temperature_chooses_every_id_equally_often() -> None:
    rows = np.tile(logits() * 100, (DRAWS, 1))
    noise = gumbel_noise(np.random.default_rng(0), rows.shape)
    found = sample(rows, SamplerSettings(temperature=1e300), noise)
    np.testing.assert_allclose(np.bincount(found, minlength=IDS) / DRAWS, 1 / IDS, atol=0.01)


def test_sampling_without_noise_or_without_a_finite_logit_is_refused() -> None:
    settings = SamplerSettings(temperature=1.0)
    with pytest.raises(UsageError, match="expected noise"):
        sample(logits()[None], settings)
    for wrong in (np.nan, np.inf):
        row = np.array([[0.0, wrong]], np.float32)
        with pytest.raises(UsageError, match="finite"):
            sample(row, settings, np.zeros_like(row))
    masked = np.full((1, IDS), -np.inf, np.float32)
    with pytest.raises(UsageError, match="finite"):
        sample(masked, settings, np.zeros_like(masked))
