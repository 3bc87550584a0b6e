"""Channels of sound are mixed, and a constant offset of their samples is removed."""

from dataclasses import dataclass

import numpy as np

STEP_S = 0.02  # in which the offset changes; at most so much sound waits for the rest of its step
MEMORY_S = 0.5  # time constant of averages: the offset is what a high-pass filter of 0.3 Hz removes
MIN_STEPS = 10  # before averages are used
ALL_STEPS = round(MEMORY_S / STEP_S)  # of an average
MIN_OFFSET, MIN_OFFSET_RATIO = 0.001, 0.1  # -60 dBFS; of the root mean square. Speech has less by itself
MIN_POWER = 1e-6  # -60 dBFS; below it channels are not compared
# The mean of N independent channels has 1/N of their mean power. Channels cancel if half of that is missing.
CANCELLED_PART = 0.5


@dataclass(frozen=True)
class MixPlan:
    """How a whole recording is mixed."""

    offset: tuple[float, ...] | None = None  # of each channel, at the start; None: nothing is removed
    channel: int | None = None  # the one to take; None: the mean of all


class Mixer:
    """Blocks of channels -> mono. The division into blocks changes no sample.

    Sound without an offset is not changed. If channels cancel in their mean, the loudest one is taken.
    """

    def __init__(self, rate: int, channels: int, plan: MixPlan | None = None):
        """Without a plan, decisions follow the sound as it comes."""
        self._step, self._plan, offset = max(1, round(STEP_S * rate)), plan, plan and plan.offset
        self.channel = plan.channel if plan else None  # the one that is taken; None: the mean
        self._rest = np.zeros((0, channels), np.float32)
        self._removes, self._steps = offset is not None, 0 if offset is None else ALL_STEPS
        # averages: offsets and powers [channels] without them, power of the mean of the channels
        self._offset = np.array(offset or channels * [0.0])
        self._power, self._mixed_power = np.zeros(channels), 0.0
        self._first_offset = self._offset
        self._active, self._cancelled, self._loudest = 0, 0, np.zeros(channels, np.int64)  # steps

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """samples float32 [n, channels] -> [m]"""
        if self._plan and not self._removes:
            return self._mono(samples)
        samples = np.concatenate((self._rest, samples))
        whole = len(samples) // self._step * self._step
        self._rest = samples[whole:]
        steps = samples[:whole].reshape(-1, self._step, samples.shape[1])
        means = (np.ones((1, self._step), np.float32) @ steps)[:, 0] / self._step  # [steps, channels]
        products = steps.transpose(0, 2, 1) @ steps / self._step  # means of products of channels
        return np.concatenate([np.zeros(0, np.float32), *map(self._mixed, steps, means, products)])

    def finish(self) -> np.ndarray:
        """The samples that wait, [m]."""
        rest, self._rest = self._rest, self._rest[:0]
        if not len(rest):
            return np.zeros(0, np.float32)
        return self._mixed(rest, rest.mean(axis=0), rest.T @ rest / len(rest))

    def plan(self) -> MixPlan:
        """The plan of a recording that was fed to the end."""
        channel = int(self._loudest.argmax()) if 2 * self._cancelled > self._active else None
        return MixPlan(tuple(self._first_offset.tolist()) if self._removes else None, channel)

    def _mono(self, samples: np.ndarray) -> np.ndarray:
        channel = 0 if samples.shape[1] == 1 else self.channel
        mono: np.ndarray = samples.mean(axis=1) if channel is None else samples[:, channel]
        return mono

    def _mixed(self, samples: np.ndarray, mean: np.ndarray, products: np.ndarray) -> np.ndarray:
        before = self._offset if self._removes else None
        self._measure(mean.astype(np.float64), products)
        if self._removes:
            start = self._offset if before is None else before
            samples = (samples - np.linspace(start, self._offset, len(samples))).astype(np.float32)
        return self._mono(samples)

    def _measure(self, mean: np.ndarray, products: np.ndarray) -> None:
        self._steps, channels = self._steps + 1, len(mean)
        weight = 1 / min(self._steps, ALL_STEPS)
        self._offset = self._offset + weight * (mean - self._offset)
        # E[(x - offset)(y - offset)] of each pair of channels
        offset = self._offset
        products = products + offset[:, None] * (offset - mean) - mean[:, None] * offset
        self._power += weight * (np.maximum(products.diagonal(), 0) - self._power)
        self._mixed_power += weight * (products.sum() / channels**2 - self._mixed_power)
        if self._steps < MIN_STEPS:
            return
        if self._steps == MIN_STEPS:
            self._first_offset = self._offset
        limit = np.maximum(MIN_OFFSET, MIN_OFFSET_RATIO * np.sqrt(self._power))
        self._removes = self._removes or bool((np.abs(self._offset) > limit).any())
        if channels > 1 and self._plan is None and self._power.mean() > MIN_POWER:
            cancels = self._mixed_power < self._power.mean() * CANCELLED_PART / channels
            loudest = int(self._power.argmax())
            self._active, self._cancelled = self._active + 1, self._cancelled + cancels
            self._loudest[loudest] += 1
            self.channel = (loudest if self.channel is None else self.channel) if cancels else None
