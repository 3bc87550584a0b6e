"""`SlotsBench`: the benchmark of several utterances in one batch, for families that speak."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import ComponentEntry
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families.base import BenchSettings, Figures, TimeSteps

FIRST_OUTPUT = "first_sound_s"
Constants = TypeVar("Constants")


class FrameDecoder(Protocol):
    """The decoder of an utterance."""

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [T, K] of the next frames -> samples float32 [n]."""


class SlotWorkload(Protocol):
    """The workload of one slot, whose prompt is read on construction."""

    @property
    def decoder(self) -> FrameDecoder: ...


Workload = TypeVar("Workload", bound=SlotWorkload)


@dataclass(frozen=True)
class SlotsBench(Generic[Constants, Workload]):
    """One pass runs one frame of each slot; the codec runs slot by slot.

    workload(stream, constants, settings, prepared): reads the prompt of one slot.
    next_codes(stream, constants, workloads): codes int64 [slots, K] of the next frames, none of which ends
        the speech.
    feed(stream, workloads, codes): one decode step of all slots.
    """

    workload: Callable[[Stream, Constants, BenchSettings, Arrays | None], Workload]
    next_codes: Callable[[Stream, Constants, Sequence[Workload]], np.ndarray]
    feed: Callable[[Stream, Sequence[Workload], np.ndarray], None]

    def batched(
        self,
        engine: Engine,
        constants: Constants,
        settings: BenchSettings,
        prepared: Arrays | None,
        time: TimeSteps,
    ) -> list[Figures]:
        """Frames per second of all slots together, for each number of slots in `settings.counts`."""
        start = partial(self._start, constants, settings, prepared)
        times = [(count, *time(engine.batched(count), start)) for count in settings.counts]
        return [
            {"streams": count, "frames_per_s": count / seconds, "pass_ms": seconds * 1e3, "median_ms": calls}
            for count, seconds, calls in times
        ]

    def _start(
        self, constants: Constants, settings: BenchSettings, prepared: Arrays | None, stream: Stream
    ) -> Callable[[], None]:
        workloads = [
            self.workload(stream.slot(slot), constants, settings, prepared) for slot in range(stream.batch)
        ]

        def step() -> None:
            codes = self.next_codes(stream, constants, workloads)
            for slot, workload in enumerate(workloads):
                workload.decoder.decode(codes[slot : slot + 1])
            self.feed(stream, workloads, codes)

        return step


def check_counts(
    max_slots: Callable[[Mapping[str, ComponentEntry]], int],
    components: Mapping[str, ComponentEntry],
    counts: tuple[int, ...],
) -> None:
    """Raises UsageError where one call of the bundle cannot serve so many streams."""
    limit = max_slots(components)
    if not all(1 <= count <= limit for count in counts):
        raise UsageError(
            f"streams {','.join(map(str, counts))}: one call of this bundle serves 1 to {limit} streams",
            field="streams",
        )


def lines(result: Figures, condition: str = "") -> list[str]:
    """The lines of the report. `condition` is one of the time to the first sound."""
    return [
        f"first sound {result[FIRST_OUTPUT]:.2f} s after {result['prompt_tokens']} ids{condition}",
        *(
            f"{row['streams']} streams: {row['frames_per_s']:.1f} frames/s, "
            f"{row['pass_ms']:.0f} ms for a frame of each"
            for row in result["streams"]
        ),
    ]
