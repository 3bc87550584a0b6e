"""`sample`: chooses the next ids from logits, with noise that the caller gives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxport.bundle.errors import UsageError


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
            ("temperature", self.temperature, self.temperature >= 0, "0 or more, finite"),
            ("top_k", self.top_k, self.top_k >= 0, "0 or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1"),
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0, "above 0, finite"),
        ):
            if not (is_valid and math.isfinite(value)):
                raise UsageError(f"{name} {value}: expected {expected}", field=name)


GREEDY = SamplerSettings()
NUCLEUS_SLACK = 1e-3  # rounding moves a sum of probabilities by so much


def gumbel_noise(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard Gumbel noise float32 of `shape`, for `sample`.

    It is drawn as -log of exponential noise in float32, three times as fast as NumPy's `gumbel`: Qwen3-TTS
    draws 30,000 values for a frame.
    """
    exponential = generator.standard_exponential(shape, dtype=np.float32)
    noise: np.ndarray = -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))  # none is infinite
    return noise


def sample(
    logits: np.ndarray,
    settings: SamplerSettings = GREEDY,
    noise: np.ndarray | None = None,
    previous: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """logits, noise float32 [N, V] -> ids int64 [N].

    `previous` holds the earlier ids int64 [n] of each row. Greedy sampling needs no noise. With Gumbel noise
    an id is chosen with its softmax probability; an id with a logit of -inf is never chosen. Raises
    UsageError.
    """
    values = logits
    if previous is not None and settings.repetition_penalty != 1:
        values = _penalized(values, previous, settings.repetition_penalty)
    if settings.temperature > 0:
        if noise is None:
            raise UsageError(f"temperature {settings.temperature}: expected noise, which is None")
        values = _filtered(values, settings) + noise
    return np.asarray(values.argmax(axis=-1))  # the first id if several are equal


def _filtered(logits: np.ndarray, settings: SamplerSettings) -> np.ndarray:
    """Logits float64 [N, V] divided by the temperature, at most 0; -inf for ids outside top_k or top_p.

    Raises UsageError on a row whose largest logit is not finite.
    """
    largest = logits.max(axis=-1, keepdims=True)
    if not np.isfinite(largest).all():
        raise UsageError("logits: a row has NaN, inf or only -inf; expected a finite largest logit")
    with np.errstate(over="ignore"):  # to -inf, at a temperature near 0
        values: np.ndarray = (logits.astype(np.float64) - largest) / settings.temperature
    if 0 < settings.top_k < values.shape[-1]:
        smallest = np.partition(values, -settings.top_k, axis=-1)[:, -settings.top_k, None]
        values = np.where(values < smallest, -np.inf, values)
    return _apply_top_p(values, settings.top_p) if settings.top_p < 1 else values


def _penalized(logits: np.ndarray, previous: Sequence[np.ndarray], penalty: float) -> np.ndarray:
    """Positive logits of previous ids divided by the penalty, negative ones multiplied by it: float64."""
    logits = logits.astype(np.float64)
    for row, ids in zip(logits, previous, strict=True):
        if len(ids):
            row[ids] = np.where(row[ids] > 0, row[ids] / penalty, row[ids] * penalty)  # once per id
    return logits


def _apply_top_p(logits: np.ndarray, top_p: float) -> np.ndarray:
    """-inf for ids outside the fewest most probable ids whose probabilities add up to at least `top_p`.

    `logits` float64 [N, V] have a maximum of 0 in each row.
    """
    order = np.argsort(-logits, axis=-1, kind="stable")
    weights = np.exp(np.take_along_axis(logits, order, axis=-1))
    probabilities = weights / weights.sum(axis=-1, keepdims=True)
    before = np.cumsum(probabilities, axis=-1) - probabilities  # probability of the ids in front of each
    kept = np.zeros(logits.shape, bool)
    np.put_along_axis(kept, order, before < top_p, axis=-1)
    return np.where(kept, logits, -np.inf)


def may_be_drawn(
    chosen: int, logits: np.ndarray, noise: np.ndarray, settings: SamplerSettings, bar: float
) -> bool:
    """Whether rounding, which moves a score by up to `slack`, can make `chosen` the best of the kept ids."""
    scores = logits.astype(np.float64) / settings.temperature
    slack = bar * float(np.abs(scores).max() + np.abs(noise).max())
    top_k = settings.top_k or len(scores)
    loose, strict = (
        _least_kept(scores, top_k, min(settings.top_p + side, 1.0))
        for side in (NUCLEUS_SLACK, -NUCLEUS_SLACK)
    )
    surely_kept = scores >= strict + slack
    best = float((scores + noise)[surely_kept].max()) if surely_kept.any() else -np.inf
    return bool(scores[chosen] >= loose - slack and scores[chosen] + noise[chosen] >= best - slack)


def _least_kept(scores: np.ndarray, top_k: int, top_p: float) -> float:
    """The least score float64 of [V] that top_k and then top_p keep."""
    ordered = np.sort(scores)[::-1][:top_k]
    weights = np.exp(ordered - ordered[0])
    before = (np.cumsum(weights) - weights) / weights.sum()
    return float(ordered[np.flatnonzero(before < top_p)[-1]])
