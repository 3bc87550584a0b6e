"""From a recording to a voice: the vector of its speaker, and its codes."""

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.runtime.engines.base import Stream
from voxport.runtime.families.qwen3_tts.constants import Constants

SPEAKER_ENCODER, SPEECH_ENCODER = "speaker_encoder", "speech_encoder"
WINDOW, HOP, BANDS, HIGHEST_HZ = 1024, 256, 128, 12_000.0  # samples, and bands up to this frequency
MIN_POWER, MIN_MEL = 1e-9, 1e-5
MIN_SAMPLES = 5 * HOP  # the encoder reflects four frames at the ends


def speaker_embedding(
    stream: Stream, constants: Constants, samples: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """samples float32 [n] -> log-mel float32 [F, bands], vector float32 [dim]. Raises UsageError."""
    _check_component(stream, SPEAKER_ENCODER)
    mel = speaker_mel(samples, constants.sample_rate)
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
    _check_component(stream, SPEECH_ENCODER)
    signature = stream.signatures[SPEECH_ENCODER]
    size = signature.inputs[0].shape[-1]
    assert isinstance(size, int)
    frames = -(-len(samples) // size)
    _check_length(frames, signature.dims["T"][1])
    audio = np.pad(samples, (0, frames * size - len(samples))).reshape(1, frames, size)
    inputs = {"audio": audio.astype(np.float32), "length": np.array([len(samples)])}
    return np.asarray(stream.run(SPEECH_ENCODER, inputs)["codes"][0])


def _check_component(stream: Stream, name: str) -> None:
    if name not in stream.signatures:
        raise UsageError("voice: this model has no encoder of recordings; use a Base model", field="voice")


def _check_length(frames: int, max_frames: int) -> None:
    if frames > max_frames:
        raise UsageError(
            f"recording: {frames} frames, the model takes at most {max_frames}; give at most 30 s of speech"
        )
