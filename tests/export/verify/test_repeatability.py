"""The figures of a check do not depend on the checks before it."""

from dataclasses import replace

import pytest
from support.export.short_verification import SHORT_EXTENT

from bundle.manifest import Bundle
from export.model import Export
from export.resolve import Source, resolve
from export.targets import target_of_job
from export.verify.comparison import Check, Comparison, FreeRun
from export.verify.modes import DEFAULTS, modes
from export.verify.run import CHECKS, checks_of, open_context

pytestmark = pytest.mark.slow


def figure(result) -> object:
    """A result as it is stored; of a free run, every value."""
    if isinstance(result, Check | Comparison):
        return result.row()
    return result.values.tolist() if isinstance(result, FreeRun) else result.values


def figures(context, bundle, mode, order) -> dict[str, list]:
    """The results of every check, run in this order, as stored."""
    checks = checks_of(context, bundle, mode)
    found = {}
    for name in sorted(checks, reverse=order == "reversed"):
        found[name] = list(map(figure, checks[name]))
    return found


@pytest.mark.parametrize("target", ["onnx", "executorch"])
def test_the_order_of_checks_changes_no_figure(bundles, checkpoint, target):
    """With integer activations, on engines whose streams share the states of one program."""
    bundle = Bundle(bundles / target)
    resolved = resolve(Source(checkpoint), bundle.job.request)
    made = Export(resolved, target_of_job(bundle.job), bundle.job)
    mode = modes(resolved, made.target, DEFAULTS)[-1]
    context = replace(open_context(bundle, made, mode), extent=SHORT_EXTENT)
    assert len(checks_of(context, bundle, mode)) == CHECKS
    assert figures(context, bundle, mode, "reversed") == figures(context, bundle, mode, "forward")
