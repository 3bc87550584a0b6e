"""Weights that are quantised with rows of their inputs."""

import numpy as np
import pytest
import torch
from support.model.micro import micro_checkpoint

from voxport.bundle.manifest import ExportRequest
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.verify.eager import EagerEngine
from voxport.model.families import FAMILIES
from voxport.model.layers.channels import ChannelScales, ValueRotations, channels_of
from voxport.model.synthetic.outliers import Outliers
from voxport.quantize import compensation
from voxport.quantize.calibration import quantize
from voxport.quantize.compensation import compensate, inverse_factor, inverse_factors, shrinkage
from voxport.quantize.inputs import InputRows
from voxport.quantize.migration import candidates, output_error
from voxport.quantize.schemes import IntegerScheme, PaletteScheme, Scheme
from voxport.quantize.search import search_palette, search_scales

SCHEMES: list[Scheme] = [
    IntegerScheme(8),
    IntegerScheme(4, 32),
    IntegerScheme(4, 128),
    PaletteScheme(4, channels=16),
]


def inputs(rows: int = 512, columns: int = 256, seed: int = 0) -> InputRows:
    """Correlated columns, four of them 16 times as large."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.eye(columns) + 0.1 * torch.randn(columns, columns, generator=generator)
    x = torch.randn(rows, columns, generator=generator) @ mixed
    x[:, :4] *= 16
    return InputRows.of(x)


def weight(rows: int = 96, columns: int = 256) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)) * 0.05


def error(module: torch.nn.Module, rows: InputRows) -> float:
    expected = rows.held_out @ weight().mT
    return float((module(rows.held_out) - expected).norm() / expected.norm())


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.describe())
def test_inputs_nearly_halve_the_error_of_the_output(scheme: Scheme) -> None:
    rows = inputs(1024)
    plain, found = scheme.quantize(weight(), "", False).module, quantize(scheme, weight(), "", rows).module
    assert error(found, rows) < 0.7 * error(plain, rows)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.describe())
def test_what_holds_for_the_fitted_rows_only_is_not_chosen(scheme: Scheme) -> None:
    """The largest columns of the other rows are other ones."""
    fit, other = inputs().fit, inputs().held_out.flip(1)
    plain = scheme.quantize(weight(), "", False).module
    assert torch.equal(quantize(scheme, weight(), "", InputRows(fit, other)).module.weight, plain.weight)


def test_rows_to_choose_with_are_not_rows_to_fit_with() -> None:
    rows = torch.arange(100.0)[:, None]
    found = InputRows.of(rows)
    assert torch.equal(torch.cat((found.fit, found.held_out)).sort(0).values, rows)
    assert len(found.held_out) == 25 and found.held_out.diff(dim=0).max() < 5  # from everywhere


@pytest.mark.parametrize("threads", [1, 2])
def test_integers_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = quantize(SCHEMES[1], weight(1200), "", inputs()).module
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found.weight, quantize(SCHEMES[1], weight(1200), "", inputs()).module.weight)


def test_the_factor_is_of_the_inverse_of_the_shrunk_products_of_inputs() -> None:
    rows = inputs(64, 32).fit
    rows[:, 5] = 0
    gram = rows.double().mT @ rows.double() / len(rows)
    scale = gram.diagonal().sqrt().clamp_min(1e-9)
    shrunk = (1 - shrinkage(gram / scale / scale[:, None], len(rows))) * gram
    shrunk.diagonal().copy_(gram.diagonal().clamp_min(1e-12 * gram.diagonal().mean() + 1e-12))
    factor = inverse_factor(rows)
    torch.testing.assert_close(factor.mT @ factor @ shrunk, torch.eye(32, dtype=torch.float64))
    assert not factor.tril(-1).any()


def test_correlations_of_few_rows_are_not_believed() -> None:
    """Independent columns: nearly all of their correlations is chance. Columns with a common part keep it."""

    def found(x: torch.Tensor) -> float:
        return shrinkage(x.T.corrcoef().double(), len(x))

    generator = torch.Generator().manual_seed(0)
    few, many = torch.randn(40, 64, generator=generator), torch.randn(4000, 64, generator=generator)
    assert found(few) > 0.8 and found(few + 3 * few[:, :1]) < 0.1 and found(many + many[:, :1]) < 0.01


class Halves:
    """Rounds to multiples of a half."""

    group: int | None = None

    def fit(self, first: int, columns: torch.Tensor) -> None: ...

    def round(self, column: int, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (2 * values).round(), (2 * values).round() / 2


def test_later_columns_make_up_for_earlier_ones() -> None:
    """Two equal inputs: the second weight takes what the first one lost. Otherwise nothing moves."""
    x = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
    same, apart = x.expand(-1, 2), torch.randn(4000, 2, generator=torch.Generator().manual_seed(1))
    two = torch.tensor([[0.20, 0.20], [0.70, -0.10]])
    assert compensate(two, inverse_factors(same), lambda part: Halves()).tolist() == [[0, 1], [1, 0]]
    assert compensate(two, inverse_factors(apart), lambda part: Halves()).tolist() == [[0, 0], [1, 0]]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.describe())
def test_parts_of_a_weight_give_the_integers_of_the_whole(
    scheme: Scheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, whole = inputs(), weight(304)
    found = scheme.quantize(whole, "", False, rows.importance).module
    expected = scheme.compensate(found, whole, rows)
    monkeypatch.setattr(compensation, "ROWS", 256)  # parts of 256 and 48 rows
    parts = scheme.compensate(found, whole, rows)
    assert expected and parts
    assert all(torch.equal(value, parts.state_dict()[name]) for name, value in expected.state_dict().items())


@pytest.mark.parametrize("group", [None, 32])
def test_a_search_with_importance_is_plausible_and_equal_to_the_search_without_if_all_count_the_same(
    group: int | None,
) -> None:
    importance = inputs().importance
    found = search_scales(weight(), group, (-8, 7), importance)
    assert found.errors.are_plausible and search_palette(weight(), 4, 16, importance).errors.are_plausible
    plain, ones = (search_scales(weight(), group, (-8, 7), each) for each in (None, torch.ones(256)))
    assert torch.equal(plain.integers, ones.integers) and torch.equal(plain.scale, ones.scale)
    palettes = [search_palette(weight(), 4, 16, each).palette for each in (None, torch.ones(256))]
    assert torch.equal(*palettes)


def test_outlier_channels_move_to_the_weights() -> None:
    rows = inputs()
    options = candidates(rows.fit.abs().amax(0), weight().abs().amax(0))
    errors = [output_error([SCHEMES[0]], [weight()], rows, each) for each in options]
    best = options[errors.index(min(errors))]
    assert min(errors) < errors[0] / 4 and (best[:4] >= best[4:].max()).all()


def random_rotations(root: torch.nn.Module) -> dict[str, torch.Tensor]:
    """An orthogonal matrix for each head of each projection of values."""
    generator, found = torch.Generator().manual_seed(0), {}
    for pair in channels_of(root):
        if pair.heads:
            size = pair.width // pair.heads
            found[pair.writer] = torch.linalg.qr(torch.randn(pair.heads, size, size, generator=generator)).Q
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_outliers_change_no_output(family: str) -> None:
    """Powers of two between weights: bit for bit. Common parts and rotations of values: to the rounding of
    bfloat16. What is changed on one side only changes outputs.
    """
    source = Source(micro_checkpoint(family))
    resolved = resolve(source, ExportRequest())

    def outputs(change: ChannelScales | ValueRotations | Outliers | None) -> torch.Tensor:
        before = source.checkpoint
        source.checkpoint = before.changed(change) if change else before
        try:
            model = Model(resolved, "BSHD")
            stream = EagerEngine(model.components, model.module, "BSHD").stream()
            found = [stream.run(part.name, part.example(0)) for part in model.components]
        finally:
            source.checkpoint = before
        values = (value for part in found for value in part.values() if value.dtype == np.float32)
        return torch.cat([torch.from_numpy(value / np.abs(value).max()).flatten() for value in values])

    expected, outliers = outputs(None), Outliers(source.root(), 0)
    assert outliers.scales.columns and outliers.readers
    assert torch.equal(outputs(outliers.scales), expected)
    assert (outputs(outliers) - expected).norm() < 0.02 * expected.norm()
    turned = ValueRotations(source.root(), random_rotations(source.root()))
    assert (outputs(turned) - expected).norm() < 0.02 * expected.norm()
    turned.columns.clear()
    assert (outputs(turned) - expected).norm() > 0.1 * expected.norm()
    outliers.readers.clear()
    assert (outputs(outliers) - expected).norm() > 0.1 * expected.norm()
    outliers.scales.columns.clear()
    assert not torch.equal(outputs(outliers.scales), expected)
