"""Files of short recordings, as clients send them."""

import io

import numpy as np
import soundfile
from support.runtime.recordings import repeated_sentence
from support.serve.loud_to_text import BLOCK, RATE, square_wave

VOICE_RATE = 24_000
WORDS = 0.5, 0.0, 0.5, 0.0, 0.5, 0.0, 0.0  # one two three


def three_words() -> bytes:
    """FLAC of 0.56 s, which is "one two three" for `LoudToText`."""
    return _file(np.concatenate([square_wave(BLOCK, value) for value in WORDS]), RATE, "FLAC")


def voice_recording(seconds: float = 1.2, level: float = 0.3) -> bytes:
    """WAV of speech, from which a voice can be made."""
    return _file(level * repeated_sentence(seconds, VOICE_RATE), VOICE_RATE, "WAV")


def _file(samples: np.ndarray, rate: int, kind: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind)
    return file.getvalue()
