"""Channels of sound are mixed, and a constant offset of their samples is removed."""

import logging
from collections import deque
from dataclasses import dataclass

import numpy as np

STEP_S = 0.02  # the offset and the mix change in such steps; at most so much live sound waits for its rest
MEMORY_S = 0.5  # time constant of averages: the offset is what a high-pass filter of 0.3 Hz removes
MIN_STEPS = 10  # before averages are used
ALL_STEPS = round(MEMORY_S / STEP_S)  # length of an average
MIN_OFFSET, MIN_OFFSET_RATIO = 0.001, 0.1  # -60 dBFS; ratio to the root mean square. Speech has less
MIN_POWER = 1e-6  # -60 dBFS; below it channels are not compared
# The mean of N independent channels has 1/N of their mean power. Channels cancel if half of that is missing.
CANCELLED_PART = 0.5
AHEAD = 35  # steps of a recording that wait: equal channels that become opposite show after 0.69 s
EQUAL_POWERS = 0.99  # the first of equally loud channels is taken, so that its sign does not change
MEAN = -1  # in place of a channel
log = logging.getLogger(__name__)


@dataclass
class _Step:
    samples: np.ndarray
    offsets: tuple[np.ndarray, np.ndarray] | None  # at its start and end; None: nothing is removed
    channel: int


class Mixer:
    """Blocks of channels -> mono. The division into blocks changes no sample.

    Sound without an offset is not changed. While channels cancel in their mean, the loudest one is taken.
    """

    def __init__(self, rate: int, channels: int, ahead: int = 0, name: str | None = "sound"):
        """`ahead`: steps that wait, because later sound may change them. `name`: for a warning, if any."""
        self._step, self._ahead, self._name = max(1, round(STEP_S * rate)), ahead, name
        self._rest = np.zeros((0, channels), np.float32)
        self._waiting: deque[_Step] = deque()
        self._removes, self._channel = False, MEAN
        # averages: offsets and powers [channels] without them, power of the mean of the channels
        self._steps, self._offset, self._power = 0, np.zeros(channels), np.zeros(channels)
        self._mixed_power = 0.0

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """samples float32 [n, channels] -> [m]"""
        samples = np.concatenate((self._rest, samples))
        whole = len(samples) // self._step * self._step
        self._rest = samples[whole:]
        steps = samples[:whole].reshape(-1, self._step, samples.shape[1])
        means = (np.ones((1, self._step), np.float32) @ steps)[:, 0] / self._step  # [steps, channels]
        products = steps.transpose(0, 2, 1) @ steps / self._step  # means of products of channels
        return np.concatenate([np.zeros(0, np.float32), *map(self._next, steps, means, products)])

    def finish(self) -> np.ndarray:
        """The samples that wait, [m]."""
        rest, self._rest = self._rest, self._rest[:0]
        last = [self._next(rest, rest.mean(axis=0), rest.T @ rest / len(rest))] if len(rest) else []
        waiting, self._waiting = self._waiting, deque()
        return np.concatenate([np.zeros(0, np.float32), *last, *map(_mono, waiting)])

    def _next(self, samples: np.ndarray, mean: np.ndarray, products: np.ndarray) -> np.ndarray:
        """Takes a step. Returns the mono samples of the one that waits no longer."""
        before, removed = self._offset, self._removes
        self._measure(mean.astype(np.float64), products)
        offsets = (before, self._offset) if self._removes else None
        self._waiting.append(_Step(samples, offsets, self._channel))
        for step in self._waiting if self._removes and not removed else ():
            step.offsets = (self._offset, self._offset)
        for step in self._waiting if self._channel != MEAN else ():
            step.channel = self._channel if step.channel == MEAN else step.channel
        if len(self._waiting) > self._ahead:
            return _mono(self._waiting.popleft())
        return np.zeros(0, np.float32)

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
        limit = np.maximum(MIN_OFFSET, MIN_OFFSET_RATIO * np.sqrt(self._power))
        self._removes = self._removes or bool((np.abs(self._offset) > limit).any())
        if channels > 1 and self._power.mean() > MIN_POWER:
            cancels = self._mixed_power < self._power.mean() * CANCELLED_PART / channels
            if not cancels:
                self._channel = MEAN
            elif self._channel == MEAN:
                self._channel = int((self._power > EQUAL_POWERS * self._power.max()).argmax())
            if cancels and self._name:
                message = "%s: the channels cancel each other; channel %d is taken while they do"
                log.warning(message, self._name, self._channel + 1)
                self._name = None


def _mono(step: _Step) -> np.ndarray:
    samples = step.samples
    if step.offsets:
        samples = (samples - np.linspace(*step.offsets, len(samples))).astype(np.float32)
    mono: np.ndarray = samples.mean(axis=1) if step.channel == MEAN else samples[:, step.channel]
    return mono
