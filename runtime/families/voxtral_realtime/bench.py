"""Benchmark of a live stream, and of encoder calls with several chunks."""

from collections.abc import Callable, Mapping

import numpy as np

from bundle.bundle import Bundle
from bundle.errors import UsageError
from bundle.manifest import ComponentEntry
from runtime.engines.base import Engine, Stream
from runtime.engines.states import Arrays
from runtime.families.base import BenchSettings, Figures, TimeSteps
from runtime.families.voxtral_realtime.constants import Constants
from runtime.families.voxtral_realtime.decoder import DecodeOptions, StreamingDecoder
from runtime.families.voxtral_realtime.encoder import ENCODER, LIVE_ENCODER
from runtime.families.voxtral_realtime.verification import NOISE_LEVEL


class LiveStream:
    """A live stream of noise. The first step returns the first token. See `Workload`."""

    prepared: Arrays | None = None

    def __init__(self, stream: Stream, constants: Constants, chunk_tokens: int = 1):
        self._decoder = StreamingDecoder(stream, constants, DecodeOptions(chunk_tokens=chunk_tokens))
        self._rng = np.random.default_rng(1)
        self._samples = chunk_tokens * constants.samples_per_token
        lookahead = constants.window_size // 2  # samples that the last mel frame needs
        self._feed(constants.delays[0] * constants.samples_per_token + lookahead)

    def _feed(self, count: int) -> None:
        for _ in self._decoder.feed(NOISE_LEVEL * self._rng.standard_normal(count, dtype=np.float32)):
            pass

    def step(self) -> None:
        self._feed(self._samples)


class Bench:
    """See `BenchWorkload`."""

    first_output = "first_token_s"
    options = ("chunks",)

    def voice(self, bundle: Bundle, constants: Constants) -> np.ndarray:
        return np.zeros((0, constants.dim), np.float32)

    def rows_needed(self, settings: BenchSettings, steps: int) -> int:
        return 0

    def check_counts(self, components: Mapping[str, ComponentEntry], counts: tuple[int, ...]) -> None:
        """Raises UsageError if the bundle has no live encoder, or a call cannot encode so many chunks."""
        if LIVE_ENCODER not in components:
            raise UsageError("this bundle is for recordings; export it with the option streaming to time it")
        limit = components[ENCODER].signature.dims["T"][1]
        if not all(1 <= count <= limit for count in counts):
            listed = ",".join(map(str, counts))
            raise UsageError(
                f"chunks {listed}: one call encodes 1 to {limit} chunks of 80 ms", field="chunks"
            )

    def start(
        self, stream: Stream, constants: Constants, settings: BenchSettings, prepared: Arrays | None
    ) -> LiveStream:
        return LiveStream(stream, constants)

    def batched(
        self,
        engine: Engine,
        constants: Constants,
        settings: BenchSettings,
        prepared: Arrays | None,
        time: TimeSteps,
    ) -> list[Figures]:
        """Time per 80 ms with several chunks per encoder call, and the delay that they add."""
        rows = []
        for count in settings.counts:

            def start(stream: Stream, count: int = count) -> Callable[[], None]:
                return LiveStream(stream, constants, count).step

            seconds, calls = time(engine.stream(), start)
            added = (count - 1) * constants.seconds_per_token
            row = {"chunks": count, "step_ms": seconds * 1e3 / count, "added_delay_ms": added * 1e3}
            rows.append({**row, "median_ms": calls})
        return rows

    def lines(self, result: Figures) -> list[str]:
        rows = [
            f"{row['chunks']} chunks per encoder call: {row['step_ms']:.1f} ms per 80 ms of audio, "
            f"{row['added_delay_ms']:.0f} ms more delay"
            for row in result["streams"]
        ]
        first = f"first token {result[self.first_output]:.2f} s after the start of a stream, with its silence"
        return [first, *rows]
