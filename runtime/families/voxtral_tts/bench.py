"""Benchmark of the frames of one utterance, and of several utterances in one batch."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from voxport.bundle.constants.voxtral_tts import FIRST_CODE, Constants
from voxport.bundle.manifest import Bundle
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.base import BenchSettings, BenchWorkload
from voxport.runtime.families.slots_bench import FIRST_OUTPUT, SlotsBench, check_counts, lines
from voxport.runtime.families.voxtral_tts.decoder import (
    Prompt,
    SpeechDecoder,
    batched_frame,
    batched_step,
    max_slots,
)
from voxport.runtime.families.voxtral_tts.voices import choose_voice

MARKERS = 6  # rows of a prompt besides voice and text


class SpeechWorkload:
    """Frames of an utterance with every code fed back. END_AUDIO does not stop it."""

    def __init__(
        self, stream: Stream, constants: Constants, settings: BenchSettings, prepared: Arrays | None
    ):
        """`prepared` are the cache rows of the voice's prefix."""
        self.decoder, self._constants = SpeechDecoder(stream, constants), constants
        self._noise, self._codes = np.random.default_rng(1), np.zeros((0, constants.n_codebooks), np.int64)
        self.prepared = self.decoder.start(_prompt(constants, settings), prepared)

    def step(self) -> None:
        if len(self._codes):
            self.decoder.step(self.decoder.embed(self._codes))
        self._codes = self.decoder.frame(self.noise())
        self._codes[0, 0] = max(self._codes[0, 0], FIRST_CODE)
        self.decoder.decode(self._codes)

    def noise(self) -> np.ndarray:
        """Noise of the next frame: float32 [1, K - 1]."""
        return self._noise.standard_normal((1, self._constants.n_codebooks - 1), dtype=np.float32)


def _prompt(constants: Constants, settings: BenchSettings) -> Prompt:
    """The voice, and random text ids; [BEGIN_AUDIO] replaces all markers."""
    audio, marker = constants.audio_id, constants.begin_audio_id
    ids = np.random.default_rng(0).integers(0, constants.vocab_size, settings.prompt_tokens)
    return Prompt(
        np.array([constants.bos_id, marker, *[audio] * len(settings.voice), marker]),
        settings.voice,
        np.array([*np.where(ids == audio, marker, ids), marker, marker]),
    )


def _voice(bundle: Bundle, constants: Constants) -> np.ndarray:
    if bundle.manifest.voices:
        return choose_voice(bundle, None, constants.dim)
    return np.zeros((0, constants.dim), np.float32)


def _next_codes(stream: Stream, constants: Constants, workloads: Sequence[SpeechWorkload]) -> np.ndarray:
    noise = np.concatenate([workload.noise() for workload in workloads])
    codes = batched_frame(stream, constants, [workload.decoder for workload in workloads], noise)
    codes[:, 0] = np.maximum(codes[:, 0], FIRST_CODE)
    return codes


def _feed(stream: Stream, workloads: Sequence[SpeechWorkload], codes: np.ndarray) -> None:
    batched_step(stream, [workload.decoder for workload in workloads], codes)


BENCH = BenchWorkload[Constants](
    first_output=FIRST_OUTPUT,
    options=("streams", "prompt_tokens"),
    voice=_voice,
    rows_needed=lambda settings, steps: len(settings.voice) + settings.prompt_tokens + steps + MARKERS,
    check_counts=partial(check_counts, max_slots),
    start=SpeechWorkload,
    batched=SlotsBench(SpeechWorkload, _next_codes, _feed).batched,
    lines=partial(lines, condition=", with the voice's prefix cached"),
)
