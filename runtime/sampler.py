"""`Sampler`: chooses the next ids from logits, with noise that the caller gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bundle.errors import UsageError


@dataclass(frozen=True)
class SamplerSettings:
    """How ids are chosen. `temperature` 0 is greedy: the id of the largest logit.

    Otherwise, in this order: `repetition_penalty` makes previous ids less probable (1: no effect); logits are
    divided by `temperature`; `top_k` keeps the k largest logits (0: all); `top_p` keeps the fewest ids whose
    probabilities add up to at least p (1: all).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        """Raises UsageError that names the wrong setting."""
        for name, value, is_valid, expected in (
            ("temperature", self.temperature, self.temperature >= 0, "0 or more"),
            ("top_k", self.top_k, self.top_k >= 0, "0 or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1"),
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0, "above 0"),
        ):
            if not is_valid:
                raise UsageError(f"{name} {value}: expected {expected}")


GREEDY = SamplerSettings()


def gumbel_noise(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard Gumbel noise float32 of `shape`, for `Sampler.choose`."""
    return generator.gumbel(size=shape).astype(np.float32)


class Sampler:
    """Chooses ids from logits. A row without noise, or a temperature of 0, gives the most probable id."""

    def __init__(self, settings: SamplerSettings = GREEDY):
        self.settings = settings

    def choose(
        self,
        logits: np.ndarray,
        noise: np.ndarray | None = None,
        previous: Sequence[np.ndarray] | None = None,
    ) -> np.ndarray:
        """logits, noise float32 [N, V] -> ids int64 [N]. `previous` holds the earlier ids int64 [n] of each
        row.

        An id with a logit of -inf is never chosen. With Gumbel noise an id is chosen with its softmax
        probability.
        """
        settings = self.settings
        if previous is not None and settings.repetition_penalty != 1:
            logits = _penalized(logits, previous, settings.repetition_penalty)
        if settings.temperature == 0:
            return _largest(logits)
        logits = logits / np.float32(settings.temperature)
        if 0 < settings.top_k < logits.shape[-1]:
            smallest = np.partition(logits, -settings.top_k, axis=-1)[:, -settings.top_k, None]
            logits = np.where(logits < smallest, -np.inf, logits)
        if settings.top_p < 1:
            logits = _nucleus(logits, settings.top_p)
        return _largest(logits if noise is None else logits + noise)


def _largest(values: np.ndarray) -> np.ndarray:
    """values [N, V] -> ids int64 [N]; the first id where several are equal."""
    ids: np.ndarray = values.argmax(axis=-1)
    return ids


def _penalized(logits: np.ndarray, previous: Sequence[np.ndarray], penalty: float) -> np.ndarray:
    """Positive logits of previous ids divided by the penalty, negative ones multiplied by it."""
    logits = logits.copy()
    for row, ids in zip(logits, previous, strict=True):
        present = np.unique(ids)
        row[present] = np.where(row[present] > 0, row[present] / penalty, row[present] * penalty)
    return logits


def _nucleus(logits: np.ndarray, top_p: float) -> np.ndarray:
    """-inf for ids outside the fewest most probable ids whose probabilities add up to at least `top_p`."""
    order = np.argsort(-logits, axis=-1, kind="stable")
    ranked = np.take_along_axis(logits, order, axis=-1).astype(np.float64)
    weights = np.exp(ranked - ranked[:, :1])
    probabilities = weights / weights.sum(axis=-1, keepdims=True)
    before = np.cumsum(probabilities, axis=-1) - probabilities  # probability of the ids in front of each
    kept = np.zeros(logits.shape, bool)
    np.put_along_axis(kept, order, before < top_p, axis=-1)
    return np.where(kept, logits, -np.inf)
