"""Outlier channels as in trained models: what they cost, what calibration brings back, what is advised."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.export.calibrations import job_of, recorded

from voxport.bundle.manifest import ExportRequest
from voxport.export.calibration import free_run, run
from voxport.export.calibration.channels import Changes
from voxport.export.model import Model
from voxport.export.resolve import Resolved, Source, resolve
from voxport.export.targets import open_target
from voxport.export.verify.eager import EagerEngine
from voxport.export.verify.worst_linears import rounding_advice
from voxport.model.families import FAMILIES, open_family
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.model.synthetic.outliers import Outliers
from voxport.quantize.calibration import Calibration
from voxport.runtime import families

STEPS = 24


def with_outliers(family: str, folder: Path) -> Source:
    size = "micro" if "micro" in open_family(family).synthetic.sizes else "tiny"
    write_checkpoint(folder, size, key=family, plant=Outliers)
    return Source(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_calibration_brings_back_more_than_half_of_what_outliers_cost(family: str, tmp_path: Path) -> None:
    """The distance of hidden states from full precision after the same codes, with integer activations."""
    resolved = resolve(with_outliers(family, tmp_path / "checkpoint"), ExportRequest(quant="w8"))
    job = job_of(resolved)
    statistics = run.write_statistics(resolved, recorded(resolved, job), tmp_path)
    constants, workload = families.read_constants(job), families.open_family(job.family).verification

    def forced(resolved: Resolved, codes: np.ndarray | None) -> Any:
        target = open_target("onnx")
        model = Model(resolved, target.layout)
        engine = EagerEngine(model.components, model.module, target.layout, target.linear_kernel)
        return workload.teacher_forced_run(engine.stream(), constants, STEPS, codes)

    full = forced(resolved.in_full_precision(), None)
    plain, calibrated = (
        np.linalg.norm(forced(each, full.codes).hidden - full.hidden)
        for each in (resolved, replace(resolved, calibration=Calibration(statistics)))
    )
    assert calibrated < plain / 2


def test_a_failed_verification_can_name_what_rounds_worst(tmp_path: Path) -> None:
    resolved = resolve(with_outliers("voxtral_tts", tmp_path / "checkpoint"), ExportRequest(quant="w8"))
    advices = {
        name: rounding_advice(Model(resolved, target.layout), target)
        for name in ("onnx", "executorch", "coreml")
        if (target := open_target(name))
    }
    assert "the rule '*feed_forward.w2=w8a32'" in advices["onnx"]
    assert "feed_forward.w2" in advices["executorch"] and "w8a32" not in advices["executorch"]
    assert "a calibration" in advices["executorch"] and not advices["coreml"]


def test_a_calibration_names_what_rounds_worst_on_its_own_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For a target that rounds activations. Channels stay as they are; otherwise nothing would be lost."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(free_run, "FRAMES", 20)
    monkeypatch.setattr(run, "choose_changes", lambda *_: Changes({}, {}))
    resolved = resolve(with_outliers("voxtral_tts", tmp_path / "checkpoint"), ExportRequest(quant="w4"))
    (texts := tmp_path / "texts.txt").write_text("Seven geese.\nNo, on Friday!\n")
    for name in ("coreml", "onnx"):
        assert "moves most" not in caplog.text
        run.calibrated(resolved, open_target(name), texts)
    assert "the rounding of activations moves most the outputs of " in caplog.text
    assert "the rule '*feed_forward.w2=w4a32' keeps the activations of such linears as floats" in caplog.text
