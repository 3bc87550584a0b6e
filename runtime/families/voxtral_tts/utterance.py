"""A text being spoken with a Voxtral-TTS bundle: from a script to samples, one utterance or several at a time."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from runtime.engines.base import Stream
from runtime.families.voxtral_tts.model import END_AUDIO, Choir, Constants, Speaker
from runtime.families.voxtral_tts.prefix_cache import PrefixCache

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Script:
    """A text to be spoken: ids int64 [P], voice float32 [N, dim] for the N [AUDIO] ids; the seed's noise is the same on every target."""

    ids: np.ndarray
    voice: np.ndarray
    seed: int
    max_frames: int
    chunk_frames: int


class Utterance:
    """A script being spoken: its prompt is read, then frame after frame is asked for and told."""

    def __init__(self, stream: Stream, constants: Constants, script: Script, kept: PrefixCache):
        self.speaker, self._script, self._constants = Speaker(stream, constants), script, constants
        self._generator = np.random.default_rng(script.seed)
        self._waiting: list[np.ndarray] = []
        self._count = 0
        self.goes_on, self.ended = True, False  # ended: by the model itself
        ids, voice = script.ids, script.voice
        text = (
            1 + int(np.flatnonzero(ids == constants.audio_id)[-1]) + 1
        )  # behind the voice and the marker that follows it
        rows = kept.load(ids[:text], voice)
        if rows is None:
            self.speaker.begin(ids[:text], voice)
            kept.keep(ids[:text], voice, stream.save_rows(text))
        else:
            self.speaker.resume(rows, text)
        self.speaker.prefill(ids[text:], voice[:0])

    def noise(self) -> np.ndarray:
        """Of the next frame: float32 [1, K - 1]."""
        return self._generator.standard_normal((1, self._constants.n_codebooks - 1), dtype=np.float32)

    def tell(self, codes: np.ndarray) -> Iterator[np.ndarray]:
        """Takes the codes [1, K] of a frame; yields samples where a chunk is full or the speech is over."""
        if codes[0, 0] == END_AUDIO:
            self.goes_on, self.ended = False, True
        else:
            self._waiting.append(codes[0])
            self._count += 1
        if self._waiting and (len(self._waiting) == self._script.chunk_frames or not self.goes_on):
            yield self._decoded()
        if self.goes_on and self._must_stop():
            self.goes_on = False
            if self._waiting:
                yield self._decoded()

    def _decoded(self) -> np.ndarray:
        codes, self._waiting = np.stack(self._waiting), []
        return self.speaker.decode(codes)

    def _must_stop(self) -> bool:
        if not self.speaker.has_room:
            log.warning(
                "stopped after %d frames: the cache of %d rows is full, the sentence may be cut off",
                self._count,
                self.speaker.stream.capacity("decode_step"),
            )
        elif self._count == self._script.max_frames:
            seconds = self._count * self._constants.samples_per_frame / self._constants.sample_rate
            log.warning(
                "stopped at the limit of %d frames (%.1f s): the sentence may be cut off",
                self._count,
                seconds,
            )
        else:
            return False
        return True


def speak(
    stream: Stream, constants: Constants, script: Script, kept: PrefixCache
) -> Generator[np.ndarray, None, bool]:
    """Yields float32 samples, `chunk_frames` frames at a time; returns whether the model itself ended the speech."""
    utterance = Utterance(stream, constants, script, kept)
    speaker = utterance.speaker
    while utterance.goes_on:
        codes = speaker.frame(utterance.noise())
        yield from utterance.tell(codes)
        if utterance.goes_on:
            speaker.step(speaker.embed(codes))
    return utterance.ended


def speak_together(
    stream: Stream, constants: Constants, scripts: Sequence[Script], kept: PrefixCache
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (index of a script, float32 samples), as many scripts at a time as the stream has callers; who is done makes room for the next."""
    choir, waiting = Choir(stream, constants), iter(enumerate(scripts))
    singing: list[tuple[int, Utterance] | None] = [None] * stream.batch
    quiet = np.zeros((1, constants.n_codebooks - 1), np.float32)
    while True:
        for place, now in enumerate(singing):
            if now is None and (following := next(waiting, None)):
                index, script = following
                singing[place] = index, (utterance := Utterance(stream.slot(place), constants, script, kept))
                choir.singers[place] = utterance.speaker
        if not any(singing):
            return
        codes = choir.frame(np.concatenate([now[1].noise() if now else quiet for now in singing]))
        for place, now in enumerate(singing):
            if now:
                index, utterance = now
                for samples in utterance.tell(codes[place : place + 1]):
                    yield index, samples
                if not utterance.goes_on:
                    singing[place] = choir.singers[place] = None
        if any(singing):
            choir.step(codes)
