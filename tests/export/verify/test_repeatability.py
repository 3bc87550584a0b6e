"""The figures of a check do not depend on the checks before it, nor on the process."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.export.short_verification import SHORT_EXTENT
from support.paths import ROOT

from voxport.bundle.manifest import Bundle
from voxport.export.model import Export
from voxport.export.resolve import Source, resolve
from voxport.export.targets import target_of_job
from voxport.export.verify.checks import CHECKS
from voxport.export.verify.comparison import Assertion, Comparison, FreeRun, Result
from voxport.export.verify.context import open_context
from voxport.export.verify.modes import DEFAULTS, modes


def figure(result: Result) -> object:
    """A result as it is stored; of a free run, every value."""
    if isinstance(result, Assertion | Comparison):
        return result.row()
    return result.values.tolist() if isinstance(result, FreeRun) else result.values


@pytest.mark.parametrize("target", ["onnx", "executorch"])
def test_the_order_of_checks_changes_no_figure(bundles: Path, checkpoint: Path, target: str) -> None:
    """With integer activations, on engines whose streams share the states of one program."""
    bundle = Bundle(bundles / target)
    resolved = resolve(Source(checkpoint), bundle.job.request)
    made = Export(resolved, target_of_job(bundle.job), bundle.job)
    mode = modes(resolved, made.target, DEFAULTS)[-1]
    context = replace(open_context(bundle, made, mode), extent=SHORT_EXTENT)
    forward, backward = (
        {check.name: list(map(figure, check.run(context))) for check in checks}
        for checks in (CHECKS, CHECKS[::-1])
    )
    assert forward == backward


VERIFY_SHORTLY = """
from support.export.short_verification import shorten_verification
from voxport.__main__ import main
with shorten_verification():
    raise SystemExit(main())
"""


@pytest.mark.slow
def test_two_processes_find_the_same_figures(
    bundles: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To two digits. The number of threads is the same: float sums of eager depend on it."""
    bundle = shutil.copytree(bundles / "executorch", tmp_path / "bundle")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT / 'tests'}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rows = []
    for _ in range(2):
        command = [sys.executable, "-c", VERIFY_SHORTLY, "verify", str(bundle), "--steps", "20", "--json"]
        command += ["--checkpoint", str(checkpoint)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append([to_two_digits(row) for row in json.loads(done.stdout)["rows"]])
    assert len(rows[0]) > 20
    assert rows[0] == rows[1]


def to_two_digits(row: dict[str, Any]) -> dict[str, Any]:
    """Numbers with two significant digits. Texts contain figures in one or two digits."""
    return {key: f"{value:.1e}" if isinstance(value, int | float) else value for key, value in row.items()}
