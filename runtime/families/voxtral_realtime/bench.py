"""Benchmark of a live stream, and of encoder calls with several chunks."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from voxport.bundle.constants.voxtral_realtime import ENCODER, LIVE_ENCODER, Constants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import ComponentEntry
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families.base import BenchSettings, BenchWorkload, Figures, TimeSteps
from voxport.runtime.families.voxtral_realtime.decoder import DecodeOptions, StreamingDecoder
from voxport.runtime.families.voxtral_realtime.verification import NOISE_LEVEL

FIRST_OUTPUT = "first_token_s"


class LiveStream:
    """A live stream of noise. The first step returns the first token. See `Workload`."""

    prepared: Arrays | None = None

    def __init__(self, stream: Stream, constants: Constants, chunk_tokens: int = 1):
        self._decoder = StreamingDecoder(stream, constants, DecodeOptions(chunk_tokens=chunk_tokens))
        self._rng = np.random.default_rng(1)
        self._samples = chunk_tokens * constants.samples_per_token
        # Half a window follows the silence and the delay: samples that the last mel frame needs.
        self._feed(constants.delays[0] * constants.samples_per_token + constants.window_size // 2)

    def _feed(self, count: int) -> None:
        for _ in self._decoder.feed(NOISE_LEVEL * self._rng.standard_normal(count, dtype=np.float32)):
            pass

    def step(self) -> None:
        self._feed(self._samples)


def _check_counts(components: Mapping[str, ComponentEntry], counts: tuple[int, ...]) -> None:
    """Raises UsageError if the bundle has no live encoder, or a call cannot encode so many chunks."""
    if LIVE_ENCODER not in components:
        raise UsageError("this bundle is for recordings; export it with --streaming to time it")
    limit = components[ENCODER].signature.dims["T"][1]
    if not all(1 <= count <= limit for count in counts):
        raise UsageError(
            f"chunks {','.join(map(str, counts))}: one call encodes 1 to {limit} chunks of 80 ms",
            field="chunks",
        )


def _batched(
    engine: Engine, constants: Constants, settings: BenchSettings, prepared: Arrays | None, time: TimeSteps
) -> list[Figures]:
    """Time per 80 ms with several chunks per encoder call, and the delay that they add."""
    times = [
        (count, *time(engine.stream(), partial(_start_chunks, constants, count))) for count in settings.counts
    ]
    return [
        {
            "chunks": count,
            "step_ms": seconds * 1e3 / count,
            "added_delay_ms": (count - 1) * constants.seconds_per_token * 1e3,
            "median_ms": calls,
        }
        for count, seconds, calls in times
    ]


def _start_chunks(constants: Constants, count: int, stream: Stream) -> Callable[[], None]:
    return LiveStream(stream, constants, count).step


def _lines(result: Figures) -> list[str]:
    return [
        f"first token {result[FIRST_OUTPUT]:.2f} s after the start of a stream, with its silence",
        *(
            f"{row['chunks']} chunks per encoder call: {row['step_ms']:.1f} ms per 80 ms of audio, "
            f"{row['added_delay_ms']:.0f} ms more delay"
            for row in result["streams"]
        ),
    ]


BENCH = BenchWorkload[Constants](
    first_output=FIRST_OUTPUT,
    options=("chunks",),
    voice=lambda bundle, constants: np.zeros((0, constants.dim), np.float32),
    rows_needed=lambda settings, steps: 0,
    check_counts=_check_counts,
    start=lambda stream, constants, settings, prepared: LiveStream(stream, constants),
    batched=_batched,
    lines=_lines,
)
