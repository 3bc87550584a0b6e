"""From log-mel features to rows of sound for the decoder, one window after another."""

from collections.abc import Iterator

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


def encode_windows(
    stream: Stream, constants: Qwen3ASRConstants, mel: np.ndarray, first: int = 0
) -> Iterator[np.ndarray]:
    """mel float32 [frames, mels] of a whole recording -> rows float32 [n, dim] of each window from number
    `first` on.
    """
    size, is_short = constants.window_chunks * constants.chunk_frames, len(mel) < constants.chunk_frames
    for start in range(first * size, len(mel), size):
        frames = mel[start : start + size]
        chunks = -(-len(frames) // constants.chunk_frames)
        padded = np.zeros((1, chunks * constants.chunk_frames, mel.shape[1]), np.float32)
        padded[0, : len(frames)] = frames
        inputs = {
            "mel": padded.reshape(1, chunks, constants.chunk_frames, -1),
            "frames": np.array([len(frames)]),
            "is_short": np.array([int(is_short)]),
        }
        yield stream.run(ENCODER, inputs)["embeddings"][0, : rows_of(len(frames), constants)]
