"""`--quant auto`: the choice itself, and rules for a model."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.export.calibrations import TARGET, job_of, of_family, recorded

from voxport.bundle.errors import RecipeError
from voxport.bundle.manifest import ExportRequest
from voxport.export.calibration.channels import choose_changes
from voxport.export.calibration.graph import GraphReplay, Rows
from voxport.export.calibration.mixture import (
    Budget,
    Choice,
    Group,
    choose,
    expected_losses,
    fitted,
    mixture,
)
from voxport.export.calibration.record import Call
from voxport.export.resolve import Resolved, Source, resolve
from voxport.model.layers.channels import ChannelChanges
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.model.synthetic.outliers import Outliers
from voxport.quantize.inputs import InputRows

Losses = Callable[[str, str], float]  # of a graph and a path


def test_the_choice_is_nearly_as_good_as_the_best_of_all_mixtures() -> None:
    """Beside all mixtures of random losses: within one step of one linear, and never above the budget."""
    rng = random.Random(0)
    for _ in range(20):
        options = {}
        for name in "abcdef":
            losses = sorted((rng.random() ** 3 for _ in range(3)), reverse=True)
            some = zip(("w4g128", "w4", "w8"), (4.1, 4.5, 8.0), losses, strict=True)
            options[name] = [Choice(name, recipe, 1, size, 1, loss) for recipe, size, loss in some]
        budget = rng.uniform(25, 45)
        found = choose(options, budget, lambda each: each.size)
        assert sum(each.size for each in found) <= budget
        mixtures = itertools.product(*options.values())
        best = min(
            (sum(each.loss for each in mixture), sum(each.size for each in mixture))
            for mixture in mixtures
            if sum(each.size for each in mixture) <= budget
        )
        largest = max(some[0].loss - some[-1].loss for some in options.values())
        assert sum(each.loss for each in found) <= best[0] + largest
    assert {each.recipe for each in choose(options, 24, lambda each: each.size)} == {"w4g128"}


def choices_of(resolved: Resolved, calls: list[tuple[str, Call]]) -> tuple[list[Choice], Losses]:
    """Choices, and the measured loss if one linear of a graph is quantised, and nothing else is. Values are
    not rotated, so that kinds of linears differ.
    """
    replays, rows = dict[str, GraphReplay](), Rows()
    for name in resolved.graphs:
        replays[name] = GraphReplay(resolved, name, calls)
        rows |= replays[name].in_floats()
    rows_of = lambda path: InputRows.of(rows[path]) if path in rows else None
    changes = ChannelChanges(
        resolved.source.root(), *choose_changes(resolved, rows_of)._replace(rotations={})
    )
    choices = list(expected_losses(resolved, replays, rows_of, changes))
    checkpoint = resolved.source.checkpoint.changed(changes)
    return choices, lambda graph, path: replays[graph].loss_of(frozenset([path]), checkpoint)


def test_expected_losses_have_the_factors_of_layers_and_of_kinds() -> None:
    """A table of own errors times such factors is found again from the sums of its rows and columns."""
    rng, names = random.Random(0), [(layer, kind) for layer in "abc" for kind in "xyz"]
    errors = {f"{layer}.{kind}": rng.uniform(0.1, 1) for layer, kind in names}
    layers, kinds = ({name: rng.uniform(0.1, 10) for name in some} for some in ("abc", "xyz"))
    true = {path: error * layers[path[0]] * kinds[path[2]] for path, error in errors.items()}

    def groups(place: int, factor: float = 1) -> list[Group]:
        paths = [[path for path in true if path[place] == name] for name in {path[place] for path in true}]
        return [(some, factor * sum(true[path] for path in some)) for some in paths]

    found = fitted(errors | {"head": 3.0}, groups(2, 7), [*groups(0), (["head"], 5.0)])
    assert found == pytest.approx(true | {"head": 5.0}, rel=1e-3)


def test_the_expected_loss_of_a_linear_is_about_its_own(tmp_path: Path) -> None:
    """With outliers, values lose 50 times as much as queries, whose errors at their own output are as large.
    What is measured alone is not calibrated: error compensation spares outputs, whose inputs are correlated.
    """
    write_checkpoint(tmp_path, "tiny", key="voxtral_tts", plant=Outliers)
    resolved = resolve(Source(tmp_path), ExportRequest(quant="w4"))
    choices, alone = choices_of(resolved, recorded(resolved, job_of(resolved)))
    base = [each for each in choices if each.recipe == "w4"]
    losses = {each.path: each.loss for each in base if each.path.startswith("layers.")}
    assert losses["layers.0.attention.wv"] > 20 * losses["layers.0.attention.wq"]
    for path, loss in losses.items():
        least = 0.01 if path.endswith("attention.wo") else 0.3
        assert least < loss / alone("backbone", path) < 2, path


def test_a_mixture_is_within_its_budget_and_spares_what_loses_most() -> None:
    resolved, job = of_family("voxtral_tts")
    calls = recorded(resolved, job)
    choices, _ = choices_of(resolved, calls)
    assert choices == choices_of(resolved, calls)[0]
    found = mixture(choices, Budget(bits=5.0), TARGET)
    assert sum(each.loss for each in found) == pytest.approx(1)
    recipes = {each.path: each.recipe for each in found}
    assert recipes.keys() == {each.path for each in choices} - {""}
    size = sum(each.size for each in choices if each.recipe == recipes.get(each.path))
    assert 8 * size / sum(each.weights for each in found) <= 5.0
    losses = {each.path: each.loss for each in choices if each.recipe == "w4"}
    spared = [losses[path] for path, recipe in recipes.items() if recipe == "w8"]
    rest = [losses[path] for path, recipe in recipes.items() if recipe != "w8"]
    assert spared and max(spared) > max(rest) / 2
    assert {each.recipe for each in mixture(choices, Budget(bits=8.5), TARGET)} == {"w8"}
    with pytest.raises(RecipeError, match=r"take 4.* bits per weight; the budget is 3.000 bits"):
        mixture(choices, Budget(bits=3.0), TARGET)
    for prefix, count in (("acoustic_transformer.layers.", 7), ("layers.", 1)):  # Euler steps, and one row
        assert {round(each.reads) for each in choices if each.path.startswith(prefix)} == {count}
    fixed = sum(each.size for each in choices if not each.path) / 1e6
    assert fixed > 0.1, "small linears in floats"
    with pytest.raises(RecipeError, match=r"of which .* MB per frame have no other choice"):
        mixture(choices, Budget(frame_mb=fixed), TARGET)
    whole = fixed + sum(each.size * each.reads for each in choices if each.recipe == "w8") / 1e6
    assert {each.recipe for each in mixture(choices, Budget(frame_mb=1.001 * whole), TARGET)} == {"w8"}
    assert any(each.recipe != "w8" for each in mixture(choices, Budget(frame_mb=0.9 * whole), TARGET))
