"""Benchmark of the frames of one utterance, and of several utterances in one batch."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from bundle.errors import UsageError
from bundle.manifest import Bundle, ComponentEntry
from runtime.engines.base import Arrays, Engine, Stream
from runtime.families.base import BenchSettings, BenchWorkload, Figures, TimeSteps
from runtime.families.voxtral_tts.decoder import (
    BATCHED,
    FIRST_CODE,
    Constants,
    Prompt,
    SpeechDecoder,
    batched_frame,
    batched_step,
)
from runtime.families.voxtral_tts.voices import choose_voice

FIRST_OUTPUT = "first_sound_s"
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


def check_counts(components: Mapping[str, ComponentEntry], counts: tuple[int, ...]) -> None:
    """Raises UsageError where one call of the bundle cannot serve so many streams."""
    limit = min(components[name].max_batch for name in BATCHED)
    if not all(1 <= count <= limit for count in counts):
        raise UsageError(
            f"streams {','.join(map(str, counts))}: one call of this bundle serves 1 to {limit} streams",
            field="streams",
        )


def _batched(
    engine: Engine, constants: Constants, settings: BenchSettings, prepared: Arrays | None, time: TimeSteps
) -> list[Figures]:
    """Frames per second of all slots together.

    One pass runs one frame of each slot; the codec runs slot by slot.
    """
    start = partial(_start_batch, constants, settings, prepared)
    times = [(count, *time(engine.batched(count), start)) for count in settings.counts]
    return [
        {
            "streams": count,
            "frames_per_s": count / seconds,
            "pass_ms": seconds * 1e3,
            "median_ms": calls,
        }
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
        noise = np.concatenate([workload.noise() for workload in workloads])
        codes = batched_frame(stream, constants, decoders, noise)
        codes[:, 0] = np.maximum(codes[:, 0], FIRST_CODE)
        for slot, decoder in enumerate(decoders):
            decoder.decode(codes[slot : slot + 1])
        batched_step(stream, decoders, codes)

    return step


def _lines(result: Figures) -> list[str]:
    return [
        f"first sound {result[FIRST_OUTPUT]:.2f} s after {result['prompt_tokens']} ids, "
        "with the voice's prefix cached",
        *(
            f"{row['streams']} streams: {row['frames_per_s']:.1f} frames/s, "
            f"{row['pass_ms']:.0f} ms for a frame of each"
            for row in result["streams"]
        ),
    ]


BENCH = BenchWorkload[Constants](
    first_output=FIRST_OUTPUT,
    options=("streams", "prompt_tokens"),
    voice=_voice,
    rows_needed=lambda settings, steps: len(settings.voice) + settings.prompt_tokens + steps + MARKERS,
    check_counts=check_counts,
    start=SpeechWorkload,
    batched=_batched,
    lines=_lines,
)
