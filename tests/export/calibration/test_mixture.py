"""`--quant auto`: the choice itself, and rules for a model."""

import itertools
import random

import pytest
from support.export.calibrations import TARGET, of_family, recorded

from voxport.bundle.errors import RecipeError
from voxport.export.calibration.graph import GraphReplay, Rows
from voxport.export.calibration.mixture import Budget, Choice, choose, expected_losses, mixture
from voxport.quantize.inputs import InputRows


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


def test_a_mixture_is_within_its_budget_and_spares_what_loses_most() -> None:
    resolved, job = of_family("voxtral_tts")
    replays, rows = dict[str, GraphReplay](), Rows()
    calls = recorded(resolved, job)
    for name in resolved.graphs:
        replays[name] = GraphReplay(resolved, name, calls)
        rows |= replays[name].in_floats()
    rows_of = lambda path: InputRows.of(rows[path]) if path in rows else None
    choices = list(expected_losses(resolved, replays, rows_of))
    assert choices == list(expected_losses(resolved, replays, rows_of))
    found = mixture(choices, Budget(bits=5.0), TARGET)
    assert sum(each.loss for each in found) == pytest.approx(1)
    recipes = {each.path: each.recipe for each in found}
    assert recipes.keys() == {each.path for each in choices}
    size = sum(each.size for each in choices if each.recipe == recipes[each.path])
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
    whole = sum(each.size * each.reads for each in choices if each.recipe == "w8") / 1e6
    assert {each.recipe for each in mixture(choices, Budget(frame_mb=1.001 * whole), TARGET)} == {"w8"}
    assert any(each.recipe != "w8" for each in mixture(choices, Budget(frame_mb=0.9 * whole), TARGET))
