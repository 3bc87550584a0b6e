"""From log-mel features to rows of sound for the decoder, one window after another."""

import numpy as np

from voxport.bundle.constants.qwen3_asr import ENCODER, Qwen3ASRConstants
from voxport.runtime.engines.base import Stream

CONVOLUTIONS = 3  # each halves the frames of a chunk, rounded up


def rows_of(frames: int, constants: Qwen3ASRConstants) -> int:
    """Rows of sound that log-mel frames give."""
    chunks, rest = divmod(frames, constants.chunk_frames)
    for _ in range(CONVOLUTIONS):
        rest = -(-rest // 2)
    return chunks * constants.chunk_rows + rest


class SoundEncoder:
    """Rows of sound for the decoder. Windows with equal features are encoded once."""

    def __init__(self, stream: Stream, constants: Qwen3ASRConstants):
        self._stream, self._constants = stream, constants
        self._windows = list[tuple[np.ndarray, np.ndarray]]()  # features, rows

    def encode(self, mel: np.ndarray) -> np.ndarray:
        """mel float32 [frames, mels] of all sound so far -> float32 [n, dim]."""
        constants = self._constants
        size, is_short = constants.window_chunks * constants.chunk_frames, len(mel) < constants.chunk_frames
        found = list[tuple[np.ndarray, np.ndarray]]()
        for number, start in enumerate(range(0, len(mel), size)):
            frames = mel[start : start + size]
            known = self._windows[number] if number < len(self._windows) else None
            if known is None or not np.array_equal(known[0], frames):
                # a copy, because a view keeps the features of all sound so far in memory
                known = frames.copy(), self._encode_window(frames, is_short)
            found.append(known)
        self._windows = found
        return np.concatenate([np.zeros((0, constants.dim), np.float32), *(rows for _, rows in found)])

    def _encode_window(self, frames: np.ndarray, is_short: bool) -> np.ndarray:
        """`is_short`: the whole recording is shorter than a chunk, so no zeros follow it."""
        constants, (count, mels) = self._constants, frames.shape
        chunks = -(-count // constants.chunk_frames)
        padded = np.zeros((1, chunks * constants.chunk_frames, mels), np.float32)
        padded[0, :count] = frames
        inputs = {
            "mel": padded.reshape(1, chunks, constants.chunk_frames, mels),
            "frames": np.array([count]),
            "is_short": np.array([int(is_short)]),
        }
        return self._stream.run(ENCODER, inputs)["embeddings"][0, : rows_of(count, constants)]
