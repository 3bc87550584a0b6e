"""Benchmark of the frames of one utterance, and of several utterances in one batch."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from bundle.errors import UsageError
from bundle.manifest import ComponentEntry
from runtime.engines.base import Arrays, Engine, Stream
from runtime.families.base import BenchSettings, BenchWorkload, Figures, TimeSteps
from runtime.families.qwen3_tts.constants import Constants
from runtime.families.qwen3_tts.decoder import (
    END,
    SpeechDecoder,
    batched_frame,
    batched_step,
    draw_noise,
    max_slots,
)
from runtime.families.qwen3_tts.prompt import Prompt, PromptEmbedder
from runtime.families.qwen3_tts.six import standard_stream

FIRST_OUTPUT = "first_sound_s"
FIXED_ROWS = 12  # of a prompt besides text


class SpeechWorkload:
    """Frames of an utterance with every code fed back. Where the model would end, code 0 is taken.

    `prepared` are the cache rows of what does not depend on the text.
    """

    def __init__(
        self, stream: Stream, constants: Constants, settings: BenchSettings, prepared: Arrays | None
    ):
        stream = standard_stream(stream, constants)
        self.decoder, self._constants = SpeechDecoder(stream, constants), constants
        self.generator = np.random.default_rng(1)
        ids = np.random.default_rng(0).integers(0, constants.text_vocab_size, settings.prompt_tokens)
        rows = PromptEmbedder(stream, constants).rows(Prompt(ids, newline=int(ids[0])))
        self.prepared = self.decoder.start_with_prefix(rows, prepared)
        self._codes: np.ndarray | None = None

    def step(self) -> None:
        if self._codes is not None:
            self.decoder.step(self._codes)
        noise = draw_noise(self.generator, self._constants)
        self._codes, _ = self.decoder.predict(max(self.decoder.first_code(noise), 0), noise)
        self.decoder.decode(self._codes[None])


def check_counts(components: Mapping[str, ComponentEntry], counts: tuple[int, ...]) -> None:
    """Raises UsageError where one call of the bundle cannot serve so many streams."""
    limit = max_slots(components)
    if not all(1 <= count <= limit for count in counts):
        raise UsageError(
            f"streams {','.join(map(str, counts))}: one call of this bundle serves 1 to {limit} streams",
            field="streams",
        )


def _batched(
    engine: Engine, constants: Constants, settings: BenchSettings, prepared: Arrays | None, time: TimeSteps
) -> list[Figures]:
    """Frames per second of all slots together. The codec runs slot by slot."""
    start = partial(_start_batch, constants, settings, prepared)
    times = [(count, *time(engine.batched(count), start)) for count in settings.counts]
    return [
        {"streams": count, "frames_per_s": count / seconds, "pass_ms": seconds * 1e3, "median_ms": calls}
        for count, seconds, calls in times
    ]


def _start_batch(
    constants: Constants, settings: BenchSettings, prepared: Arrays | None, stream: Stream
) -> Callable[[], None]:
    workloads = [
        SpeechWorkload(stream.slot(slot), constants, settings, prepared) for slot in range(stream.batch)
    ]
    decoders = [workload.decoder for workload in workloads]

    def step() -> None:
        noise = [draw_noise(workload.generator, constants) for workload in workloads]
        codes = batched_frame(stream, constants, decoders, noise)
        codes = np.where(codes == END, 0, codes)
        for slot, decoder in enumerate(decoders):
            decoder.decode(codes[slot : slot + 1])
        batched_step(stream, decoders, codes)

    return step


def _lines(result: Figures) -> list[str]:
    return [
        f"first sound {result[FIRST_OUTPUT]:.2f} s after {result['prompt_tokens']} ids",
        *(
            f"{row['streams']} streams: {row['frames_per_s']:.1f} frames/s, "
            f"{row['pass_ms']:.0f} ms for a frame of each"
            for row in result["streams"]
        ),
    ]


BENCH = BenchWorkload[Constants](
    first_output=FIRST_OUTPUT,
    options=("streams", "prompt_tokens"),
    voice=lambda bundle, constants: np.zeros((0, constants.dim), np.float32),
    rows_needed=lambda settings, steps: settings.prompt_tokens + steps + FIXED_ROWS,
    check_counts=check_counts,
    start=SpeechWorkload,
    batched=_batched,
    lines=_lines,
)
