"""Fixed runs of the toy family: for verification, traces and the benchmark."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from exercises.toy_runtime.decoder import Constants, LetterDecoder

from bundle.bundle import Bundle
from bundle.manifest import ComponentEntry
from runtime.engines.base import Engine, Stream
from runtime.engines.states import Arrays
from runtime.families.base import BenchSettings, Figures, ForcedRun, NearResult, TimeSteps
from runtime.trace import ArraySpec

PROMPT = (3, 1, 4, 1, 5)


class ToyVerification:
    def teacher_forced_run(
        self, stream: Stream, constants: Constants, steps: int, forced: np.ndarray | None = None
    ) -> ForcedRun:
        decoder, logits = LetterDecoder(stream, constants), []
        decoder.read(PROMPT)
        for index in range(steps):
            logits.append(decoder.logits)
            decoder.feed(int(logits[-1].argmax() if forced is None else forced[index, 0]))
        found = np.stack(logits)
        return ForcedRun(codes=found.argmax(axis=1)[:, None], logits=found, hidden=found)

    def free_run(self, stream: Stream, constants: Constants, steps: int) -> np.ndarray:
        """Samples float32 [steps * dim]."""
        return constants.gain * self.teacher_forced_run(stream, constants, steps).logits.flatten()

    def compare(self, found: np.ndarray, expected: np.ndarray, constants: Constants) -> dict[str, float]:
        return {"largest_difference": float(np.abs(found - expected).max())}

    def codes_are_near(self, found: np.ndarray, expected: np.ndarray) -> NearResult | None:
        """None: every letter has logits."""
        return None


class ToyTrace:
    def inputs(self, constants: Constants) -> dict[str, ArraySpec]:
        return {"ids": ArraySpec(("n",), limits=(constants.dim,))}

    def run(self, engine: Engine, constants: Constants, inputs: Arrays, live: bool) -> Arrays:
        decoder = LetterDecoder(engine.stream(), constants)
        decoder.read(inputs["ids"].tolist())
        return {"logits": decoder.logits}


class ToyBench:
    first_output = "first_sound_s"
    options = ("prompt_tokens",)

    def voice(self, bundle: Bundle, constants: Constants) -> np.ndarray:
        return np.zeros((0, constants.dim), np.float32)

    def rows_needed(self, settings: BenchSettings, steps: int) -> int:
        return settings.prompt_tokens + steps

    def check_counts(self, components: Mapping[str, ComponentEntry], counts: tuple[int, ...]) -> None:
        """No option of the family gives counts."""

    def start(
        self, stream: Stream, constants: Constants, settings: BenchSettings, prepared: Arrays | None
    ) -> ToyWorkload:
        return ToyWorkload(LetterDecoder(stream, constants), settings)

    def batched(
        self,
        engine: Engine,
        constants: Constants,
        settings: BenchSettings,
        prepared: Arrays | None,
        time: TimeSteps,
    ) -> list[Figures]:
        return []

    def lines(self, result: Figures) -> list[str]:
        return [f"first sound {result[self.first_output]:.3f} s"]


class ToyWorkload:
    prepared = None

    def __init__(self, decoder: LetterDecoder, settings: BenchSettings):
        self._decoder = decoder
        decoder.read([1] * settings.prompt_tokens)

    def step(self) -> None:
        self._decoder.feed(int(self._decoder.logits.argmax()))
