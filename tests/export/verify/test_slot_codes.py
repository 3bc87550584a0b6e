"""An ONNX bundle with integer weights and activations: a job in a slot has the codes of the job alone."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.export.cache import ExportCache
from support.export.faulty_engines import CACHE, Engines, StreamEngine, failed

from voxport.bundle.manifest import Bundle
from voxport.bundle.spec import StateSpec
from voxport.export.verify.code_checks import check_codes
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import Arrays, Engine, EngineOptions, Stream
from voxport.runtime.families.voxtral_tts.decoder import BATCHED, FIRST_CODE

SLOTS = 4


@pytest.fixture(scope="module")
def engines(checkpoint: Path) -> Engines:
    return Engines(checkpoint, "w8")


@pytest.fixture(scope="module")
def engine(checkpoint: Path, exports: ExportCache, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    out = tmp_path_factory.mktemp("slots") / "bundle"
    options = ("--quant", "w8", "--cache-length", str(CACHE), "--target", "onnx", "--no-verify")
    exports.export(out, "--checkpoint", str(checkpoint), *options)
    return open_engine(Bundle(out), EngineOptions(threads=1))


class JobInSlot(Stream):
    """A job in a slot of a batch. Jobs with other prompts have the other slots in the same calls."""

    def __init__(self, batch: Stream, index: int, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """`change` may exchange the rows of the outputs of a batch."""
        super().__init__(batch.signatures)
        self._slots, self._index, self._change = batch, index, change

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        calls = [
            other_job(component, inputs, 1 + slot) if slot != self._index else inputs for slot in range(SLOTS)
        ]
        if component not in BATCHED:
            return [self._slots.slot(slot).run(component, call) for slot, call in enumerate(calls)][
                self._index
            ]
        together = {name: np.concatenate([call[name] for call in calls]) for name in inputs}
        outputs = self._slots.run(component, together)
        return {
            name: self._change(array)[self._index : self._index + 1].copy() for name, array in outputs.items()
        }

    def reset(self) -> None: ...

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        return {}

    def _load(self, states: Arrays) -> None: ...


def other_job(component: str, inputs: Arrays, rows: int) -> Arrays:
    """The inputs of another job, whose prompt is `rows` shorter."""
    found = {
        name: np.flip(array, -1) if array.dtype == np.float32 else array for name, array in inputs.items()
    }
    if component == "prefill":
        found["embeddings"] = found["embeddings"][:, rows:]
    elif "position" in found:
        found["position"] = found["position"] - rows
    elif "codes" in found:
        found["codes"] = np.maximum(found["codes"] - rows, FIRST_CODE)
    return found


def different_codes(
    engines: Engines, engine: Engine, index: int, change: Callable[[np.ndarray], np.ndarray]
) -> list[str]:
    """The checks of teacher-forced codes that fail, by the rule for ties that verification has."""
    in_slot = StreamEngine(lambda: JobInSlot(engine.batched(SLOTS), index, change))
    context = engines.context(in_slot, eager=engine)
    return failed(check_codes(context))


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, SLOTS - 1])
def test_a_job_in_a_slot_has_the_codes_of_the_job_alone(engines: Engines, engine: Engine, index: int) -> None:
    assert engines.integer_graphs
    assert different_codes(engines, engine, index, lambda rows: rows) == []


@pytest.mark.slow
def test_slots_that_are_swapped_have_other_codes(engines: Engines, engine: Engine) -> None:
    """The fault that the test above must detect."""
    found = different_codes(engines, engine, 0, lambda rows: np.roll(rows, 1, axis=0))
    assert found == ["codes, teacher-forced", "other codes, teacher-forced"]
