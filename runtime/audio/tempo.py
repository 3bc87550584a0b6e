"""`Tempo`: speech that is faster or slower, with the same pitch."""

from collections.abc import Iterable, Iterator
from fractions import Fraction

import av
import numpy as np
from av.filter import Graph

from voxport.bundle.errors import UsageError

MIN_SPEED, MAX_SPEED = 0.25, 4.0
MIN_FACTOR = 0.5  # of one filter; slower speech passes several
MIN_SAMPLES = 64  # of a frame; the filter fails if it makes no sample of one
TAIL_S = 0.25  # of silence behind the last samples, which the filters need to return them


def check_speed(speed: float) -> None:
    """Raises UsageError if `speed` is out of range."""
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise UsageError(f"speed {speed:g}: expected {MIN_SPEED:g} to {MAX_SPEED:g}", field="speed")


class Tempo:
    """Changes the speed of mono samples that arrive in pieces.

    The result has as many samples as were given, divided by `speed`. The first come after 0.16 to 0.24 s.
    """

    def __init__(self, rate: int, speed: float):
        """`rate` in Hz. Raises UsageError if `speed` is out of range."""
        check_speed(speed)
        self._rate, self._speed = rate, speed
        self._given = self._returned = 0  # samples so far
        self._held = np.zeros(0, np.float32)
        self._graph = Graph()
        times = Fraction(1, rate)
        first = self._graph.add_abuffer(format="flt", sample_rate=rate, layout="mono", time_base=times)
        filters = [self._graph.add("atempo", str(factor)) for factor in _factors(speed)]
        self._graph.link_nodes(first, *filters, self._graph.add("abuffersink")).configure()

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """samples float32 [n] -> those that are ready, float32 [m]; may be none."""
        self._given += len(samples)
        return self._filtered(samples)

    def finish(self) -> np.ndarray:
        """The rest, float32 [m]."""
        left = round(self._given / self._speed) - self._returned
        rest = self._filtered(np.zeros(round(TAIL_S * self._rate), np.float32))
        self._graph.push(None)
        samples: np.ndarray = np.concatenate((rest, self._pulled()))
        return samples[:left]

    def changed(self, pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """All of `pieces` float32 [n], and the rest; no piece is empty."""
        yield from filter(len, map(self.feed, pieces))
        yield from filter(len, [self.finish()])

    def _filtered(self, samples: np.ndarray) -> np.ndarray:
        joined, self._held = np.concatenate((self._held, samples)), np.zeros(0, np.float32)
        if len(joined) < MIN_SAMPLES:
            self._held = joined
            return np.zeros(0, np.float32)
        frame = av.AudioFrame.from_ndarray(joined.reshape(1, -1), format="flt", layout="mono")
        frame.sample_rate = self._rate
        self._graph.push(frame)
        return self._pulled()

    def _pulled(self) -> np.ndarray:
        found = [np.zeros(0, np.float32)]
        while True:
            try:
                frame = self._graph.pull()
            except (av.BlockingIOError, av.EOFError):  # until more is given, or for good
                break
            assert isinstance(frame, av.AudioFrame)
            found.append(frame.to_ndarray()[0])
        samples = np.concatenate(found)
        self._returned += len(samples)
        return samples


def _factors(speed: float) -> list[float]:
    """Factors that a filter takes; their product is `speed`."""
    return [speed] if speed >= MIN_FACTOR else [MIN_FACTOR, *_factors(speed / MIN_FACTOR)]
