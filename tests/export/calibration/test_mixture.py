"""`--quant auto`: the choice itself, and rules for a model."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from support.export.calibrations import TARGET, of_family, recorded

from voxport.bundle.errors import RecipeError
from voxport.export.calibration.graph import GraphReplay, Rows
from voxport.export.calibration.mixture import Budget, Choice, Mixture, choose
from voxport.quantize.calibration import InputRows


def test_the_choice_is_nearly_as_good_as_the_best_of_all_mixtures() -> None:
    """Beside all mixtures of random losses: within one step of one linear, and never above the budget."""
    rng = random.Random(0)
    for _ in range(20):
        options = {}
        for name in "abcdef":
            losses = sorted((rng.random() ** 3 for _ in range(3)), reverse=True)
            some = zip(("w4g128", "w4", "w8"), (4.1, 4.5, 8.0), losses, strict=True)
            options[name] = [Choice(name, recipe, 1, size, loss) for recipe, size, loss in some]
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


def test_a_mixture_is_deterministic_within_its_budget_and_spares_what_loses_most() -> None:
    resolved, job = of_family("voxtral_tts")
    calls = recorded(resolved, job)
    replays, rows = dict[str, GraphReplay](), Rows()
    for name in resolved.graphs:
        replays[name] = GraphReplay(resolved, name, calls)
        rows |= replays[name].in_floats()

    def mixture(bits: float | None, frame_mb: float | None = None) -> Mixture:
        rows_of = lambda path: InputRows.of(rows[path]) if path in rows else None
        return Mixture(resolved, replays, rows_of, Budget.of(TARGET, bits, frame_mb))

    found = mixture(5.0).chosen()
    assert found == mixture(5.0).chosen() and sum(each.loss for each in found) == pytest.approx(1)
    options = mixture(5.0).options
    recipes = {each.path: each.recipe for each in found}
    assert recipes.keys() == options.keys()
    size = sum(
        next(each.size for each in some if each.recipe == recipes[path]) for path, some in options.items()
    )
    assert 8 * size / sum(each.weights for each in found) <= 5.0
    losses = {path: some[0].loss for path, some in options.items()}
    spared = [path for path, recipe in recipes.items() if recipe == "w8"]
    rest = [path for path in losses if path not in spared]
    assert spared and max(losses[path] for path in spared) > max(losses[path] for path in rest) / 2
    assert {each.recipe for each in mixture(8.5).chosen()} == {"w8"}
    with pytest.raises(RecipeError, match="times the budget"):
        mixture(3.0).chosen()
    check_frames(mixture, options)


def check_frames(
    mixture: Callable[[float | None, float | None], Mixture], options: Mapping[str, Sequence[Choice]]
) -> None:
    """A linear that a frame reads several times takes so much more of the budget."""
    times = {path: some[0].size / options[path][0].size for path, some in mixture(None, 1.0).options.items()}
    for prefix, count in (("acoustic_transformer.layers.", 7), ("layers.", 1)):  # Euler steps, and one row
        assert {round(each) for path, each in times.items() if path.startswith(prefix)} == {count}
    whole = sum(times[path] * some[-1].size for path, some in options.items())
    assert {each.recipe for each in mixture(None, 1.001e-6 * whole).chosen()} == {"w8"}
    assert any(each.recipe != "w8" for each in mixture(None, 0.9e-6 * whole).chosen())
