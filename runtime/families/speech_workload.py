"""The benchmark of families that speak: frames of one utterance, or of several in one batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle, ComponentEntry
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families.base import (
    BenchSettings,
    BenchWorkload,
    Constants,
    Figures,
    TimeSteps,
    max_slots,
)
from voxport.runtime.utterance import FrameLoop, PromptDecoder, UtteranceDecoder, read_whole

FIRST_OUTPUT = "first_sound_s"


class SpeechDecoder(PromptDecoder[Any], UtteranceDecoder, Protocol):
    """The decoder of an utterance that reads its prompt. Any: each family has prompts of its own type."""


Decoder = TypeVar("Decoder", bound=SpeechDecoder)
Noise = TypeVar("Noise")


@dataclass(frozen=True)
class SpeechBench(Generic[Constants, Decoder, Noise]):
    """What the workloads of a family that speaks differ in.

    begin(stream, constants, settings): a decoder, its prompt, and the number of rows of the prefix of it.
    fixed_rows: rows of a prompt besides voice and text.
    condition: of the time to the first sound, as text.
    """

    loop: FrameLoop[Constants, Decoder, Noise]
    begin: Callable[[Stream, Constants, BenchSettings], tuple[Decoder, Any, int]]
    fixed_rows: int
    condition: str = ""

    def workload(self, voice: Callable[[Bundle, Constants], np.ndarray]) -> BenchWorkload[Constants]:
        """`voice`: see `BenchWorkload`."""
        return BenchWorkload(
            first_output=FIRST_OUTPUT,
            options=("streams", "prompt_tokens"),
            voice=voice,
            rows_needed=lambda settings, steps: (
                len(settings.voice) + settings.prompt_tokens + steps + self.fixed_rows
            ),
            check_counts=self._check_counts,
            start=partial(SpeechWorkload, self),
            batched=self._time_batches,
            lines=self._lines,
        )

    def _check_counts(self, components: Mapping[str, ComponentEntry], counts: tuple[int, ...]) -> None:
        """Raises UsageError if one call of the bundle cannot serve so many streams."""
        limit = max_slots(components.values(), self.loop.batched)
        if not all(1 <= count <= limit for count in counts):
            raise UsageError(
                f"streams {','.join(map(str, counts))}: one call of this bundle serves 1 to {limit} streams",
                field="streams",
            )

    def _time_batches(
        self,
        engine: Engine,
        constants: Constants,
        settings: BenchSettings,
        prepared: Arrays | None,
        time: TimeSteps,
    ) -> list[Figures]:
        """Frames per second of all slots together, for each number of slots in `settings.counts`."""
        rows = list[Figures]()
        for count in settings.counts:
            seconds, calls = time(
                engine.batched(count),
                lambda stream: SpeechWorkload(self, stream, constants, settings, prepared).step,
            )
            rows.append(
                {
                    "streams": count,
                    "frames_per_s": count / seconds,
                    "pass_ms": seconds * 1e3,
                    "median_ms": calls,
                }
            )
        return rows

    def _lines(self, result: Figures) -> list[str]:
        return [
            f"first sound {result[FIRST_OUTPUT]:.2f} s after {result['prompt_tokens']} ids{self.condition}",
            *(
                f"{row['streams']} streams: {row['frames_per_s']:.1f} frames/s, "
                f"{row['pass_ms']:.0f} ms for a frame of each"
                for row in result["streams"]
            ),
        ]


class SpeechWorkload(Generic[Constants, Decoder, Noise]):
    """A frame of each slot of a stream in a step. Every code is fed back, and the end does not stop it.

    The codec runs slot by slot. `prepared` are the cache rows of the prefix of the prompts.
    """

    def __init__(
        self,
        bench: SpeechBench[Constants, Decoder, Noise],
        stream: Stream,
        constants: Constants,
        settings: BenchSettings,
        prepared: Arrays | None,
    ):
        self._loop, self._stream, self.prepared = bench.loop, stream, prepared
        self._constants = constants
        self._decoders = list[Decoder]()
        for slot in range(stream.batch):
            part = stream.slot(slot) if stream.batch > 1 else stream
            decoder, prompt, rows = bench.begin(part, constants, settings)
            self.prepared = read_whole(decoder, prompt, rows, self.prepared)
            self._decoders.append(decoder)
        if stream.batch == 1:
            self._stream = self._decoders[0].stream  # a family may wrap it
        self._generators = [np.random.default_rng(1) for _ in self._decoders]
        self._codes: np.ndarray | None = None

    def step(self) -> None:
        if self._codes is not None:
            self._loop.step(self._stream, self._decoders, self._codes)
        noise = [self._loop.draw(generator, self._constants) for generator in self._generators]
        found = self._loop.frame(self._stream, self._decoders, noise)
        self._codes = np.maximum(found, self._loop.first_code)
        for slot, decoder in enumerate(self._decoders):
            decoder.decode(self._codes[slot : slot + 1])
