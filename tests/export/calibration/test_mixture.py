"""`--quant auto`: the choice itself, and rules for a model."""

import itertools
import random
from fnmatch import fnmatchcase

import pytest
from support.export.calibrations import TARGET, of_family, recorded

from voxport.bundle.errors import RecipeError
from voxport.export.calibration.graph import GraphReplay, Rows
from voxport.export.calibration.mixture import Choice, Mixture, choose
from voxport.quantize.recipe import AUTO_BASE


def test_the_choice_is_nearly_as_good_as_the_best_of_all_mixtures() -> None:
    """Beside all mixtures of random losses: within one step of one linear, and never above the budget."""
    rng = random.Random(0)
    for _ in range(20):
        options = {}
        for name in "abcdef":
            losses = sorted((rng.random() ** 3 for _ in range(3)), reverse=True)
            some = zip(("w4g128", "w4", "w8"), (4.1, 4.5, 8.0), losses, strict=True)
            options[name] = [Choice(name, recipe, size, loss) for recipe, size, loss in some]
        budget = rng.uniform(25, 45)
        found = choose(options, budget)
        assert sum(each.size for each in found) <= budget
        mixtures = itertools.product(*options.values())
        best = min(
            (sum(each.loss for each in mixture), sum(each.size for each in mixture))
            for mixture in mixtures
            if sum(each.size for each in mixture) <= budget
        )
        largest = max(some[0].loss - some[-1].loss for some in options.values())
        assert sum(each.loss for each in found) <= best[0] + largest
    with pytest.raises(RecipeError, match="smallest"):
        choose(options, 24)


def test_rules_are_deterministic_within_the_bits_and_spare_what_loses_most() -> None:
    resolved, job = of_family("voxtral_tts")
    calls = recorded(resolved, job)
    replays, rows = dict[str, GraphReplay](), Rows()
    for name in resolved.graphs:
        replays[name] = GraphReplay(resolved, name, calls)
        rows |= replays[name].in_floats()
    mixture = Mixture(resolved, TARGET, replays, rows)
    found = mixture.rules(5.0)
    assert found == Mixture(resolved, TARGET, replays, rows).rules(5.0)
    recipes = dict(rule.split("=") for rule in found)
    for path, options in mixture.options.items():
        assert sum(fnmatchcase(path, pattern) for pattern in recipes) <= 1
        assert len({each.size for each in options}) == len(options)
    size = sum(
        next(each.size for each in options if each.recipe == recipes.get(path, AUTO_BASE))
        for path, options in mixture.options.items()
    )
    assert 8 * size / mixture.weights <= 5.0
    losses = {path: options[0].loss for path, options in mixture.options.items()}
    spared = [path for path, recipe in recipes.items() if recipe == "w8"]
    rest = [path for path in losses if path not in spared]
    assert spared and max(losses[path] for path in spared) > max(losses[path] for path in rest) / 2
    assert mixture.rules(8.5) and not any("w4" in rule for rule in mixture.rules(8.5))
    with pytest.raises(RecipeError, match="bits"):
        mixture.rules(3.0)
