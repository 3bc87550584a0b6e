"""Letters and the decode loop of the toy family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from exercises.toy_constants import Constants

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.runtime.engines.base import Stream

END = 0  # the letter that ends a speech


class Letters:
    """The tokenizer: the id of a letter is its place in the file."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises UsageError without a file, IntegrityError on a damaged one."""
        if not paths:
            raise UsageError("the bundle has no letters; export from a checkpoint with letters.txt")
        self._letters = paths[0].read_text()
        if len(set(self._letters)) < len(self._letters) or not self._letters:
            raise IntegrityError(f"{paths[0]}: no letters, or one of them twice; export the bundle again")

    def encode(self, text: str) -> list[int]:
        """Raises UsageError on an empty text and on an unknown letter."""
        unknown = sorted(set(text) - set(self._letters))
        if unknown or not text:
            raise UsageError(f"text {text!r}: expected one or more of the letters {self._letters!r}")
        return [self._letters.index(letter) for letter in text]


class LetterDecoder:
    """Reads a prompt, then feeds letters back. `logits` float32 [dim] belong to the next letter."""

    def __init__(self, stream: Stream, constants: Constants) -> None:
        self._stream, self._constants, self.position = stream, constants, 0
        self.logits = np.zeros(constants.dim, np.float32)

    def read(self, ids: Sequence[int]) -> None:
        self._run("prefill", ids)

    def feed(self, letter: int) -> None:
        self._run("decode_step", [letter])

    def samples(self) -> np.ndarray:
        """Samples float32 [dim] of the next letter."""
        return (self._constants.gain * self.logits).astype(np.float32)

    def _run(self, component: str, ids: Sequence[int]) -> None:
        x = np.eye(self._constants.dim, dtype=np.float32)[None, list(ids)]
        inputs = {"x": x, "position": np.array([self.position])}
        self.logits = self._stream.run(component, inputs)["y"][0, -1]
        self.position += len(ids)
