"""`Recogniser`: the decoder of one recording or live stream, and the rows that its caches keep."""

from collections.abc import Iterator, Sequence

import numpy as np

from voxport.bundle.constants.qwen3_asr import Qwen3ASRConstants
from voxport.bundle.errors import UsageError
from voxport.runtime.engines.base import Arrays, Stream


class Recogniser:
    """Prompts and their answers. What two prompts have in common at their beginning is read once."""

    def __init__(self, stream: Stream, constants: Qwen3ASRConstants):
        self._stream, self._constants = stream, constants
        self._ids = list[int]()  # of the rows in the caches
        self._sound = np.zeros((0, constants.dim), np.float32)  # rows of the sound in the caches
        self.hidden = np.zeros(0, np.float32)  # float32 [dim] of the last row

    def answer(self, ids: Sequence[int], sound: np.ndarray) -> Iterator[int]:
        """Reads a prompt, and yields greedy tokens until the model ends or the caches are full. The end is
        not among them. See `read`.
        """
        token = int(self.read(ids, sound).argmax())
        while token not in self._constants.end_ids:
            yield token
            if len(self._ids) == self._stream.capacity("decode_step"):
                return
            token = int(self.advance(token).argmax())

    def read(self, ids: Sequence[int], sound: np.ndarray) -> np.ndarray:
        """Reads a prompt -> logits float32 [vocab] of the next token.

        sound float32 [n, dim] takes the places of the ids of sound. Raises UsageError if the prompt does not
        fit the caches.
        """
        capacity = self._stream.capacity("decode_step")
        if len(ids) >= capacity:
            raise UsageError(
                f"the prompt has {len(ids)} rows, and the bundle keeps {capacity}; give a shorter context or "
                "recording, or export with a larger cache"
            )
        known = min(self._known_rows(ids, sound), len(ids) - 1)
        self._ids, self._sound = self._ids[:known], sound
        rest = np.array(ids[known:])
        rows = with_sound(self._stream, self._constants, rest, sound)
        most, logits = self._stream.signatures["prefill"].dims["S"][1], np.zeros(0, np.float32)
        for start in range(0, len(rest), most):
            part = rest[start : start + most].tolist()
            logits = self._step("prefill", part, rows[:, start : start + most])
        return logits

    def advance(self, token: int) -> np.ndarray:
        """Reads a token -> logits float32 [vocab] of the next one."""
        row = self._stream.run_rows("embed_tokens", {"ids": np.array([[token]])})["embeddings"]
        return self._step("decode_step", [token], row)

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

    def _step(self, component: str, ids: list[int], rows: np.ndarray) -> np.ndarray:
        """Reads rows float32 [1, S, dim] -> logits float32 [vocab] behind the last one."""
        inputs: Arrays = {"embeddings": rows, "position": np.array([len(self._ids)])}
        found = self._stream.run(component, inputs)
        self._ids += ids
        self.hidden = found["hidden"][0, -1]
        logits: np.ndarray = found["logits"][0]
        return logits


def with_sound(
    stream: Stream, constants: Qwen3ASRConstants, ids: np.ndarray, sound: np.ndarray
) -> np.ndarray:
    """Rows float32 [1, S, dim] of ids int64 [S]. The last rows of the sound take the places of its ids."""
    rows = stream.run_rows("embed_tokens", {"ids": ids[None]})["embeddings"].copy()
    is_sound = ids == constants.audio_pad_id
    rows[0, is_sound] = sound[len(sound) - int(is_sound.sum()) :]
    return rows
