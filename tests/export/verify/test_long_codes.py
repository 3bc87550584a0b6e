"""The checks over many frames find what a short run does not: drift, repetition and silence."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.export.faulty_engines import (
    Engines,
    Fault,
    FaultyStream,
    StreamEngine,
    failed,
    measurements,
    no_fault,
)

from voxport.__main__ import main as voxport
from voxport.export.verify.comparison import Result
from voxport.export.verify.eager import EagerEngine
from voxport.export.verify.run_checks import check_long_codes
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families import open_family
from voxport.runtime.utterance import RUNAWAY_FRAMES

CACHE, STEPS = 128, 90

LATE = 30  # calls of a component after which a fault begins


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines(random_checkpoint("qwen3_tts"), "none", cache=CACHE)


@pytest.fixture(scope="module")
def rounded() -> Engines:
    """With integer activations."""
    return Engines(random_checkpoint("qwen3_tts"), "w4", cache=CACHE)


class RunOnce:
    """Runs a workload, but one of a right engine only once: it takes seconds, and is always the same."""

    def __init__(self, run: Callable[..., Any] | None) -> None:
        assert run
        self.run, self.results = run, dict[Any, Any]()

    def __call__(self, stream: Stream, constants: Any, frames: int, *codes: np.ndarray | None) -> Any:
        if isinstance(stream, FaultyStream):
            return self.run(stream, constants, frames, *codes)
        key = (
            vars(stream)["_engine"],
            frames,
            *(None if array is None else array.tobytes() for array in codes),
        )
        if key not in self.results:
            self.results[key] = self.run(stream, constants, frames, *codes)
        return self.results[key]


WORKLOAD = open_family("qwen3_tts").verification
WORKLOAD = replace(
    WORKLOAD, teacher_forced_run=RunOnce(WORKLOAD.teacher_forced_run), rollout=RunOnce(WORKLOAD.rollout)
)


def results_of(
    engines: Engines, fault: Fault, full: EagerEngine | StreamEngine | None = None, steps: int = STEPS
) -> list[Result]:
    context = engines.context(fault, full=full)
    return list(
        check_long_codes(replace(context, workload=WORKLOAD, extent=replace(context.extent, frames=steps)))
    )


def late(stream: Stream, component: str) -> bool:
    """Whether `component` of this stream was called often; counts its calls."""
    counts = stream.__dict__.setdefault("counts", {})
    counts[component] = counts.get(component, 0) + 1
    return bool(counts[component] > LATE)


def _repeating(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "code_predictor" and late(stream, name):
        outputs["chosen"][:] = 1


def _silent(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "codec_step":
        frames = outputs["audio"].reshape(inputs["codes"].shape[1], -1)
        frames[-RUNAWAY_FRAMES:] = 0


def _growing_error(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "decode_step":
        late(stream, name)
        outputs["hidden"] += 1e-7 * vars(stream)["counts"][name] ** 2


def _tie(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    """Later hidden values are off by as much as one activation that was rounded the other way moves them."""
    if name == "decode_step" and late(stream, name):
        outputs["hidden"] += 1e-3 * np.abs(outputs["hidden"]).max()


def _large_error(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "decode_step" and late(stream, name):
        outputs["hidden"] += 0.2 * np.abs(outputs["hidden"]).max()


FREE_RUNS = f"free runs of {STEPS} frames"
RUNAWAY, DRIFT = f"repetition or silence within {STEPS} frames", f"no drift over {STEPS} frames"


def test_a_right_artifact_passes(engines: Engines) -> None:
    results = results_of(engines, no_fault, full=engines.unrounded)
    assert failed(results) == []
    found = measurements(results)
    shares = found[f"codes over {STEPS} frames, artifact and full precision"]
    assert list(shares.values()) == [1.0] * engines.constants.n_codebooks
    assert found[FREE_RUNS] == {"equal_frames": STEPS}


@pytest.mark.parametrize(
    ("fault", "check"), [(_repeating, RUNAWAY), (_silent, RUNAWAY), (_growing_error, DRIFT)]
)
def test_a_fault_of_later_frames_is_found(engines: Engines, fault: Fault, check: str) -> None:
    assert failed(results_of(engines, fault)) == [check]


@pytest.mark.slow
def test_a_tie_of_integer_activations_is_no_drift(engines: Engines, rounded: Engines) -> None:
    assert failed(results_of(engines, _tie)) == [DRIFT]
    assert failed(results_of(rounded, _tie)) == []
    assert failed(results_of(rounded, _large_error)) == [DRIFT]


@pytest.mark.slow
def test_what_full_precision_does_too_is_no_fault(engines: Engines) -> None:
    assert failed(results_of(engines, _repeating, full=engines.faulty(_repeating))) == []


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--long-codes",)])
def test_codes_of_a_large_model_are_compared_where_it_is_asked_for(
    qwen_bundles: Path,
    more: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With full precision. Drift is left out, because eager steps of a large model take seconds."""
    monkeypatch.setattr("voxport.export.resolve.MAX_REFERENCE_BYTES", 0)
    assert voxport(["verify", str(qwen_bundles / "onnx"), "--steps", "40", "--json", *more]) == 0
    report = capsys.readouterr().out
    assert ("codes over 40 frames, artifact and full precision" in report) is bool(more)
    assert ("repetition or silence within 40 frames" in report) is bool(more)
    assert "no drift over 40 frames" not in report
    # the run with float activations is never compared with it
    assert report.count("not compared with full precision") == (1 if more else 2)


def test_a_family_without_the_check_is_refused(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert voxport(["verify", str(bundles / "onnx"), "--long-codes"]) == 2
    assert "--long-codes: voxtral_tts has no such check; leave it out" in capsys.readouterr().err
