"""The figures of a check do not depend on the checks before it."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.export.short_verification import SHORT_EXTENT

from voxport.bundle.manifest import Bundle
from voxport.export.model import Model
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
    made = target_of_job(bundle.job)
    model = Model(resolved, made.layout, bundle.job.compute_precision)
    mode = modes(resolved, made, DEFAULTS)[-1]
    context = replace(open_context(bundle, model, made, mode), extent=SHORT_EXTENT)
    forward, backward = (
        {check.name: list(map(figure, check.run(context))) for check in checks}
        for checks in (CHECKS, CHECKS[::-1])
    )
    assert forward == backward
