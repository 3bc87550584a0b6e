"""How loud speech is, and its gain. The scale of the model's mel is absolute, so quiet words get lost.

Levels are in dBFS: decibels of the largest sample of the speech, relative to full scale.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from math import inf, log10

import numpy as np

from voxport.bundle.errors import UsageError

QUIET_DBFS = -26.0  # below it, a warning
AUTO_BELOW_DBFS, AUTO_TARGET_DBFS = -6.0, -1.0  # the peak of a recording that gets gain, and its new peak
SILENCE_DBFS = -60.0  # below it a recording counts as silent and gets no gain
MAX_GAIN_DB, MAX_AUTO_GAIN_DB = 60.0, 40.0  # more than that would make hiss as loud as speech
WARN_AFTER_S = 10.0  # seconds of live sound
LIVE_ADVICE = "raise it with the option gain"
MIN_WORD_S = 0.2  # seconds of the shortest word
FRAME_S = 0.02
BACKGROUND_PART = 5  # a fifth of the frames is not louder than the background
MIN_ACTIVE, MIN_ACTIVE_FRAMES = 2.0, 5  # ratio to the background; with fewer such frames, all count
LOUD_FRAMES, LOUD_PART = 45, 0.03  # the loudest active frames may be a cough: 0.9 s, and 3 %
MAX_LOUDER, MAX_CREST = 8.0, 50.0  # levels and peaks of speech above its typical level: 15 and 30 dB
COUGH_EDGE = 3  # frames before and after louder ones that do not count either
LOW_HZ, HIGH_HZ = 100.0, 4100.0  # telephones carry 300 to 3400 Hz, filters of converters end above 4000
MIN_HIGH_PART = 1e-5  # part of the power; consonants have a hundredth
log = logging.getLogger(__name__)


class SpeechLevel:
    """The peak of speech in sound that comes in blocks of 20 ms or more.

    A peak far above the typical level of active frames is a click or a cough, and does not count. The level
    of a frame is the median of absolute samples, which clicks do not change.
    """

    def __init__(self, rate: int, window: int = 0):
        """`window`: the last blocks that count; 0 counts all."""
        self._rate, self._count = rate, 0
        self._blocks: deque[np.ndarray] = deque(maxlen=window or None)  # levels, peaks of the frames [2, n]

    @property
    def seconds(self) -> float:
        """Length of all sound so far."""
        return self._count / self._rate

    def add(self, samples: np.ndarray) -> None:
        """samples float32 [n]"""
        self._count += len(samples)
        frames = np.abs(_frames(samples, self._rate))
        middle = frames.shape[1] // 2
        levels = np.partition(frames, middle, axis=1)[:, middle]
        self._blocks.append(np.stack((levels, frames.max(axis=1))))

    def peak(self) -> float:
        """The largest absolute sample of the speech so far."""
        levels, peaks = np.concatenate([np.zeros((2, 0)), *self._blocks], axis=1)
        sounding = np.sort(levels[levels > 0])
        if not len(sounding):
            return float(np.median(peaks)) if len(peaks) else 0.0
        active = sounding[sounding > MIN_ACTIVE * sounding[len(sounding) // BACKGROUND_PART]]
        active = active if len(active) >= MIN_ACTIVE_FRAMES else sounding
        loud = min(max(LOUD_FRAMES, round(LOUD_PART * len(active))), len(active) // 2)
        typical = active[-1 - loud]
        near = np.convolve(levels > MAX_LOUDER * typical, np.ones(2 * COUGH_EDGE + 1))[COUGH_EDGE:-COUGH_EDGE]
        return float(peaks[(near == 0) & (peaks <= MAX_CREST * typical)].max(initial=typical))


def band_powers(samples: np.ndarray, rate: int) -> np.ndarray:
    """Power of samples float32 [n] below and above 4.1 kHz. Speech of a telephone has nothing above."""
    frames = _frames(samples, rate)
    power = np.square(np.abs(np.fft.rfft(frames * np.hanning(frames.shape[1])))).sum(axis=0)
    frequencies = np.fft.rfftfreq(frames.shape[1], 1 / rate)
    is_high = frequencies > HIGH_HZ
    return np.array([power[(frequencies > LOW_HZ) & ~is_high].sum(), power[is_high].sum()])


def _frames(samples: np.ndarray, rate: int) -> np.ndarray:
    """Frames [k, 20 ms] that cover all samples, or one shorter frame."""
    size = max(1, round(FRAME_S * rate))
    if len(samples) <= size:
        return samples[None] if len(samples) else np.zeros((1, 1), np.float32)
    whole = samples[: len(samples) // size * size].reshape(-1, size)
    return np.concatenate((whole, samples[None, -size:])) if len(samples) % size else whole


def decibels(peak: float) -> float:
    return 20 * log10(peak) if peak > 0 else -inf


def gain_factor(gain_db: float) -> float:
    return float(10 ** (gain_db / 20))


def check_gain(gain: float | str) -> float | str:
    """`auto`, `off`, or a number of decibels. Raises UsageError."""
    if isinstance(gain, str) and gain in ("auto", "off"):
        return gain
    try:
        value = float(gain)
    except ValueError:
        value = inf
    if not -MAX_GAIN_DB <= value <= MAX_GAIN_DB:
        raise UsageError(
            f"gain {gain}: expected auto, off, or -{MAX_GAIN_DB:g} to {MAX_GAIN_DB:g} dB", field="gain"
        )
    return value


def recording_gain_db(gain: float | str, peak_dbfs: float) -> float:
    """Decibels to add to a recording with this peak. Warns if it stays quiet."""
    if gain == "auto":
        is_off = SILENCE_DBFS <= peak_dbfs < AUTO_BELOW_DBFS or peak_dbfs > 0  # floats may be above 1
        added = min(MAX_AUTO_GAIN_DB, AUTO_TARGET_DBFS - peak_dbfs) if is_off else 0.0
    else:
        added = 0.0 if gain == "off" else float(gain)
    if peak_dbfs + added >= SILENCE_DBFS:  # an empty transcript says that the sound is silent
        advice = "record it louder" if gain == "auto" else "set the option gain to auto"
        _warn_if_quiet(peak_dbfs + added, advice)
    return added


def quiet_reason(peak_dbfs: float) -> str | None:
    """Says that sound with this peak of speech is silent or too quiet; None if it is neither."""
    if peak_dbfs >= QUIET_DBFS:
        return None
    found = "silent" if peak_dbfs < SILENCE_DBFS else "too quiet"
    return f"the sound is {found}, with a peak of {peak_dbfs:.0f} dBFS"


def _warn_if_quiet(peak_dbfs: float, advice: str) -> None:
    if reason := quiet_reason(peak_dbfs):
        log.warning("%s; words may be missing, %s", reason, advice)


def reason_without_text(level: SpeechLevel, gain_db: float = 0.0, damage: str | None = None) -> str:
    """Why a transcript is empty. `level` is the sound before the gain."""
    if damage:
        return f"the sound is {damage}"
    if level.seconds < MIN_WORD_S:
        return f"the sound has {level.seconds:.2f} s, which is too short for a word"
    if reason := quiet_reason(decibels(level.peak()) + gain_db):
        return reason
    return f"the model recognised no speech in {level.seconds:.1f} s of sound"


def amplified(blocks: Iterable[np.ndarray], gain_db: float, is_auto: bool = False) -> Iterator[np.ndarray]:
    """Blocks float32 [n] with a fixed gain, clipped to [-1, 1]. Warns at the end of clipped samples.

    An automatic gain clips only clicks and coughs, without a warning.
    """
    scale, clipped = gain_factor(gain_db), 0
    for block in blocks:
        louder = (block * np.float32(scale)).astype(np.float32)
        clipped += int((np.abs(louder) > 1).sum())
        yield np.clip(louder, -1, 1)
    if clipped and not is_auto:
        log.warning("a gain of %.1f dB clipped %d samples; give less", gain_db, clipped)


def with_quiet_warning(blocks: Iterable[np.ndarray], level: SpeechLevel) -> Iterator[np.ndarray]:
    """The same blocks of live sound, which `level` measures.

    Warns once if the sound is quiet: after 10 s, or at its end if that comes before.
    """
    is_checked = False
    for block in blocks:
        level.add(block)
        if not is_checked and (is_checked := level.seconds > WARN_AFTER_S):
            _warn_if_quiet(decibels(level.peak()), LIVE_ADVICE)
        yield block
    if not is_checked and (peak := decibels(level.peak())) >= SILENCE_DBFS:  # see `recording_gain_db`
        _warn_if_quiet(peak, LIVE_ADVICE)
