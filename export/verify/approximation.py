"""Reports how far the codes of a faster option are from those of its default."""

from collections.abc import Iterable

from torch import nn

from voxport.export.model import Model
from voxport.export.resolve import Resolved, resolve
from voxport.export.targets.base import Target
from voxport.export.verify.comparison import Report, measure
from voxport.export.verify.eager import EagerEngine
from voxport.model.family import Approximation
from voxport.runtime.families import open_family


def report_approximation(
    approximation: Approximation, resolved: Resolved, target: Target, model: Model, steps: int
) -> Iterable[Report]:
    """The distance of a teacher-forced run of `steps` steps, in eager with float activations.

    Reports nothing where the option has its default.
    """
    option, request = approximation.option, resolved.request
    others = {name: value for name, value in request.options.items() if name != option}
    default = resolve(resolved.source, request.model_copy(update={"options": others}))
    value, usual = (getattr(each.options, option) for each in (resolved, default))
    if value == usual:
        return
    run = open_family(resolved.source.family.name).verification.teacher_forced_run
    stream = EagerEngine(model.components, model.module, target.layout).stream()
    found = run(stream, resolved.constants, steps, None)
    model.release(approximation.graph)  # so that memory holds one of the two
    changed = Model(default, target.layout, target.compute_precision)

    def module(component: str) -> nn.Module:
        owner = changed if resolved.graph_of[component] == approximation.graph else model
        return owner.module(component)

    stream = EagerEngine(model.components, module, target.layout).stream()
    expected = run(stream, default.constants, steps, found.codes)
    equal = found.codes[:, 1:] == expected.codes[:, 1:]
    values = {
        "distance": measure(found.values, expected.values).norm,
        "other_codes_equal": float(equal.mean()),
    }
    yield Report(f"codes, {option} {value} and {usual}", values)
