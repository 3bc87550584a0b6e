"""`Recogniser`: the tokens of an answer to a recording, and the rows of a prompt that a stream keeps."""

from collections.abc import Iterator, Sequence

import numpy as np

from voxport.bundle.constants.qwen3_asr import Qwen3ASRConstants
from voxport.bundle.errors import UsageError
from voxport.runtime.engines.base import Arrays, Stream


class Recogniser:
    """The decoder of one recording or live stream. Its caches keep the prompt and the answer."""

    def __init__(self, stream: Stream, constants: Qwen3ASRConstants):
        self._stream, self._constants = stream, constants
        self._ids = list[int]()  # of the rows in the caches
        self._sound = np.zeros((0, constants.dim), np.float32)  # rows of the sound in the caches

    def answer(self, ids: Sequence[int], sound: np.ndarray, limit: int) -> Iterator[int]:
        """Reads a prompt, and yields at most `limit` greedy tokens, the end not among them.

        sound float32 [n, dim] takes the places of the ids of sound. Rows that the caches have already are not
        read again. Raises UsageError if the prompt does not fit the caches.
        """
        capacity = self._stream.capacity("decode_step")
        if len(ids) >= capacity:
            raise UsageError(
                f"the prompt has {len(ids)} rows, and the bundle keeps {capacity}; give a shorter context or "
                "recording, or export with a larger --cache-length"
            )
        token = self._read(ids, sound)
        for _ in range(min(limit, capacity - len(ids))):
            if token in self._constants.end_ids:
                return
            yield token
            if len(self._ids) == capacity:
                return
            row = self._stream.run_rows("embed_tokens", {"ids": np.array([[token]])})["embeddings"]
            token = self._step("decode_step", [token], row)

    def _read(self, ids: Sequence[int], sound: np.ndarray) -> int:
        """Reads what the caches do not have yet -> the first token of the answer."""
        known = min(self._known_rows(ids, sound), len(ids) - 1)
        self._ids, self._sound = self._ids[:known], sound
        rest = np.array(ids[known:])
        rows = with_sound(self._stream, self._constants, rest, sound)
        most, token = self._stream.signatures["prefill"].dims["S"][1], 0
        for start in range(0, len(rest), most):
            part = rest[start : start + most].tolist()
            token = self._step("prefill", part, rows[:, start : start + most])
        return token

    def _known_rows(self, ids: Sequence[int], sound: np.ndarray) -> int:
        """How many rows of a prompt the caches have: equal ids, and equal rows of sound."""
        count = min(len(self._sound), len(sound))
        equal = (self._sound[:count] == sound[:count]).all(axis=1)
        same_sound, seen = (int(equal.argmin()) if not equal.all() else count), 0
        for index, (own, other) in enumerate(zip(self._ids, ids, strict=False)):
            if own != other:
                return index
            if own == self._constants.audio_pad_id:
                if seen == same_sound:
                    return index
                seen += 1
        return min(len(self._ids), len(ids))

    def _step(self, component: str, ids: list[int], rows: np.ndarray) -> int:
        """Reads rows float32 [1, S, dim] -> the token with the largest logit."""
        inputs: Arrays = {"embeddings": rows, "position": np.array([len(self._ids)])}
        logits = self._stream.run(component, inputs)["logits"]
        self._ids += ids
        return int(logits[0].argmax())


def with_sound(
    stream: Stream, constants: Qwen3ASRConstants, ids: np.ndarray, sound: np.ndarray
) -> np.ndarray:
    """Rows float32 [1, S, dim] of ids int64 [S]. The last rows of the sound take the places of its ids."""
    rows = stream.run_rows("embed_tokens", {"ids": ids[None]})["embeddings"].copy()
    is_sound = ids == constants.audio_pad_id
    rows[0, is_sound] = sound[len(sound) - int(is_sound.sum()) :]
    return rows
