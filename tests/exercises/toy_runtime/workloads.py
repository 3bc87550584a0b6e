"""Fixed runs of the toy family: for verification, traces and the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from exercises.toy_constants import Constants
from exercises.toy_runtime.decoder import LetterDecoder

from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families.workload import (
    BenchSettings,
    BenchWorkload,
    ForcedRun,
    TraceWorkload,
    VerificationWorkload,
)
from voxport.runtime.trace import ArraySpec

PROMPT = (3, 1, 4, 1, 5)


def teacher_forced_run(
    stream: Stream, constants: Constants, steps: int, forced: np.ndarray | None = None
) -> ForcedRun:
    decoder, logits = LetterDecoder(stream, constants), []
    decoder.read(PROMPT)
    for index in range(steps):
        logits.append(decoder.logits)
        decoder.feed(int(logits[-1].argmax() if forced is None else forced[index, 0]))
    found = np.stack(logits)
    return ForcedRun(codes=found.argmax(axis=1)[:, None], logits=found, hidden=found)


def free_run(stream: Stream, constants: Constants, steps: int) -> np.ndarray:
    """Samples float32 [steps * dim]."""
    return constants.gain * teacher_forced_run(stream, constants, steps).logits.flatten()


def compare(found: np.ndarray, expected: np.ndarray, constants: Constants) -> dict[str, float]:
    return {"largest_difference": float(np.abs(found - expected).max())}


class ToyWorkload:
    prepared = None

    def __init__(
        self, stream: Stream, constants: Constants, settings: BenchSettings, prepared: Arrays | None
    ) -> None:
        self._decoder = LetterDecoder(stream, constants)
        self._decoder.read([1] * settings.prompt_tokens)

    def step(self) -> None:
        self._decoder.feed(int(self._decoder.logits.argmax()))


def _trace(
    engine: Engine, constants: Constants, inputs: Arrays, live: bool, tokenizer_files: Sequence[Path]
) -> Arrays:
    decoder = LetterDecoder(engine.stream(), constants)
    decoder.read(inputs["ids"].tolist())
    return {"logits": decoder.logits}


VERIFICATION = VerificationWorkload[Constants](
    teacher_forced_run,
    free_run,
    compare,
)
TRACE = TraceWorkload[Constants](
    inputs=lambda constants: {"ids": ArraySpec(("n",), limits=(constants.dim,))}, run=_trace
)
BENCH = BenchWorkload[Constants](
    first_output="first_sound_s",
    summary="first sound {first_sound_s:.3f} s",
    start=ToyWorkload,
    options=("prompt_tokens",),
    rows_needed=lambda settings, steps: settings.prompt_tokens + steps,
)
