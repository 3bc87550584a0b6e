"""From a recording to a voice: what is read and refused, the vector of its speaker, and its codes."""

import logging
import re
from pathlib import Path

import numpy as np
import soxr

from voxport.bundle.bounds import FRAME_RATE, FRAME_SECONDS
from voxport.bundle.errors import UsageError
from voxport.runtime.audio import silero
from voxport.runtime.audio.sources import Recording
from voxport.runtime.engines.base import Stream
from voxport.runtime.families.qwen3_tts.prompt import estimated_frames

MIN_S, MAX_S, RECOMMENDED_S = 1.0, 30.0, 3.0  # published: clones need 3 s
MIN_PEAK = 10 ** (-50 / 20)  # below it a recording counts as silent
TELEPHONE_RATE, MIN_RATE = 8000, 16_000  # `Recording` warns up to the first, this module up to the other
MAX_LENGTH_RATIO = 3.0  # how many times longer or shorter than usual the speech of a transcript may be
SLOW_S = 1.0  # by which it may be longer besides, because of a drawn-out word
LETTERS_OF_DIGIT = "seven"
LEVEL, MIN_PROBABILITY = 0.5, 0.5  # peak of the samples in which speech is looked for, and of a chunk of it
MIN_SPEECH_S = 0.3  # measured: none in noise, hum, wind, typing and music, 0.4 s in 1.3 s of quiet speech
SPEAKER_ENCODER, SPEECH_ENCODER = "speaker_encoder", "speech_encoder"
WINDOW, HOP, BANDS, HIGHEST_HZ = 1024, 256, 128, 12_000.0  # samples, and bands up to this frequency
MIN_POWER, MIN_MEL = 1e-9, 1e-5
MIN_SAMPLES = 5 * HOP  # the encoder reflects four frames at the ends
log = logging.getLogger(__name__)


def read_samples(path: Path, rate: int, advice: str = "cut it") -> np.ndarray:
    """Samples float32 [n] at `rate` Hz. Raises UsageError, with `advice` above 30 s."""

    def check(seconds: float) -> None:
        if seconds > MAX_S:
            raise UsageError(
                f"{path}: longer than {MAX_S:g} s, which is all that the encoder takes; {advice}",
                field="recording",
            )

    recording = Recording(path, rate)
    if TELEPHONE_RATE < recording.file_rate < MIN_RATE:
        log.warning(
            "%s: %d samples per second hold no sound above %d Hz; %d or more give a better result",
            path,
            recording.file_rate,
            recording.file_rate // 2,
            MIN_RATE,
        )
    recording.peak_dbfs(check)
    recording.check_whole()
    samples: np.ndarray = np.clip(np.concatenate(list(recording.blocks())), -1, 1).astype(np.float32)
    return samples


def read_recording(path: Path, rate: int) -> np.ndarray:
    """As `read_samples`. Raises UsageError on a recording that no voice can be made from."""
    samples = read_samples(path, rate, "cut it, 3 to 15 s are best")
    if len(samples) < MIN_S * rate:
        raise UsageError(
            f"{path}: {len(samples) / rate:.2f} s, expected at least {MIN_S:g} s of speech", field="recording"
        )
    is_silent = np.abs(samples).max() < MIN_PEAK
    if is_silent or speech_seconds(samples, rate) < MIN_SPEECH_S:
        found = "silent" if is_silent else "has no speech"
        raise UsageError(f"{path}: {found}; give a recording of speech", field="recording")
    if len(samples) < RECOMMENDED_S * rate:
        log.warning("%s: %.1f s; a voice is better from 3 s or more", path, len(samples) / rate)
    return samples


def speech_seconds(samples: np.ndarray, rate: int) -> float:
    """Seconds of speech, also of whispers, in samples float32 [n]."""
    louder = samples * (LEVEL / max(np.abs(samples).max(), MIN_PEAK))
    resampled = soxr.resample(louder, rate, silero.RATE)
    count = len(resampled) // silero.CHUNK
    probabilities = silero.SpeechProbability().feed(resampled[: count * silero.CHUNK])
    return float((probabilities > MIN_PROBABILITY).sum() * silero.CHUNK / silero.RATE)


def check_transcript(transcript: str, seconds: float, speech_s: float) -> None:
    """Raises UsageError if a recording is much longer or shorter than its transcript explains.

    The model would speak the rest of one of them. `speech_s` of its `seconds` are speech.
    """
    spelled = re.sub(r"\d", LETTERS_OF_DIGIT, transcript.strip())
    usual = estimated_frames(spelled) * FRAME_SECONDS
    if usual > MAX_LENGTH_RATIO * seconds or speech_s > MAX_LENGTH_RATIO * usual + SLOW_S:
        raise UsageError(
            f"transcript: its {len(transcript)} characters usually take {usual:.1f} s, the recording has "
            f"{speech_s:.1f} s of speech in {seconds:.1f} s; give every word of the recording, and no other",
            field="transcript",
        )


def recording_rate(stream: Stream) -> int:
    """Samples per second that both encoders take; the codec may make more. Raises UsageError."""
    return round(FRAME_RATE * _frame_samples(stream))


def _frame_samples(stream: Stream) -> int:
    if SPEECH_ENCODER not in stream.signatures:
        raise UsageError("voice: this model has no encoder of recordings; use a Base model", field="voice")
    size = stream.signatures[SPEECH_ENCODER].inputs[0].shape[-1]
    assert isinstance(size, int)
    return size


def speaker_embedding(stream: Stream, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """samples float32 [n] -> log-mel float32 [F, bands], vector float32 [dim]. Raises UsageError."""
    mel = speaker_mel(samples, recording_rate(stream))
    _check_length(len(mel), stream.signatures[SPEAKER_ENCODER].dims["F"][1])
    return mel, stream.run(SPEAKER_ENCODER, {"mel": mel[None]})["embedding"][0]


def speaker_mel(samples: np.ndarray, rate: int) -> np.ndarray:
    """samples float32 [n] in [-1, 1] at `rate` Hz -> natural logarithms float32 [n // HOP, BANDS].

    Raises UsageError on fewer than `MIN_SAMPLES` samples.
    """
    from mistral_common.audio import mel_filter_bank

    if len(samples) < MIN_SAMPLES:
        raise UsageError(
            f"recording: {len(samples)} samples, expected at least {MIN_SAMPLES}; give seconds of speech"
        )
    filters = mel_filter_bank(WINDOW // 2 + 1, BANDS, 0.0, HIGHEST_HZ, rate)  # Slaney's, [bins, bands]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    padded = np.pad(samples.astype(np.float64), (WINDOW - HOP) // 2, "reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    magnitude = np.sqrt(np.square(np.abs(np.fft.rfft(windows * window))) + MIN_POWER)
    mel: np.ndarray = np.log(np.maximum(magnitude @ filters, MIN_MEL)).astype(np.float32)
    return mel


def encode_reference(stream: Stream, samples: np.ndarray) -> np.ndarray:
    """samples float32 [n] -> codes int64 [ceil(n / samples of a frame), K]. Raises UsageError."""
    size = _frame_samples(stream)
    frames = -(-len(samples) // size)
    _check_length(frames, stream.signatures[SPEECH_ENCODER].dims["T"][1])
    audio = np.pad(samples, (0, frames * size - len(samples))).reshape(1, frames, size)
    inputs = {"audio": audio.astype(np.float32), "length": np.array([len(samples)])}
    return np.asarray(stream.run(SPEECH_ENCODER, inputs)["codes"][0])


def _check_length(frames: int, max_frames: int) -> None:
    if frames > max_frames:
        raise UsageError(
            f"recording: {frames} frames, the model takes at most {max_frames}; give at most 30 s of speech"
        )
