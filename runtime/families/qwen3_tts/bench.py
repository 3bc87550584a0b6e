"""Benchmark of the frames of one utterance, and of several utterances in one batch."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from voxport.bundle.constants.qwen3_tts import Constants
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.base import BenchSettings, BenchWorkload
from voxport.runtime.families.qwen3_tts.decoder import (
    END,
    SpeechDecoder,
    batched_frame,
    batched_step,
    draw_noise,
    max_slots,
)
from voxport.runtime.families.qwen3_tts.prompt import Prompt, PromptEmbedder
from voxport.runtime.families.qwen3_tts.split_stream import standard_stream
from voxport.runtime.families.slots_bench import FIRST_OUTPUT, SlotsBench, check_counts, lines

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


def _next_codes(stream: Stream, constants: Constants, workloads: Sequence[SpeechWorkload]) -> np.ndarray:
    noise = [draw_noise(workload.generator, constants) for workload in workloads]
    codes = batched_frame(stream, constants, [workload.decoder for workload in workloads], noise)
    return np.where(codes == END, 0, codes)


def _feed(stream: Stream, workloads: Sequence[SpeechWorkload], codes: np.ndarray) -> None:
    batched_step(stream, [workload.decoder for workload in workloads], codes)


BENCH = BenchWorkload[Constants](
    first_output=FIRST_OUTPUT,
    options=("streams", "prompt_tokens"),
    voice=lambda bundle, constants: np.zeros((0, constants.dim), np.float32),
    rows_needed=lambda settings, steps: settings.prompt_tokens + steps + FIXED_ROWS,
    check_counts=partial(check_counts, max_slots),
    start=SpeechWorkload,
    batched=SlotsBench(SpeechWorkload, _next_codes, _feed).batched,
    lines=lines,
)
