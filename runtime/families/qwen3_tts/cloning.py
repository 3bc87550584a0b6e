"""From a recording to a voice: the vector of its speaker, and its codes."""

import numpy as np

from voxport.bundle.constants.qwen3_tts import Constants
from voxport.bundle.errors import UsageError
from voxport.runtime.engines.base import Stream
from voxport.runtime.families.qwen3_tts.mel import speaker_mel

SPEAKER_ENCODER, SPEECH_ENCODER = "speaker_encoder", "speech_encoder"


def speaker_embedding(
    stream: Stream, constants: Constants, samples: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """samples float32 [n] -> log-mel float32 [F, bands], vector float32 [dim]. Raises UsageError."""
    _check_component(stream, SPEAKER_ENCODER)
    mel = speaker_mel(samples, constants.sample_rate)
    _check_length(len(mel), stream.signatures[SPEAKER_ENCODER].dims["F"][1])
    return mel, stream.run(SPEAKER_ENCODER, {"mel": mel[None]})["embedding"][0]


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
