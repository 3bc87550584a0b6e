"""Recipes and scales."""

import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import voxport.quantize.modules
import voxport.quantize.search
from voxport.bundle.errors import RecipeError
from voxport.export.__main__ import main as export
from voxport.quantize.modules import (
    PalettizedLinear,
    QuantizedLinear,
    float_activations,
    int8_per_block,
    int8_per_token,
    linear_kernel,
)
from voxport.quantize.quantizer import Quantizer
from voxport.quantize.recipe import RECIPES, Recipe, Rule, find_recipe
from voxport.quantize.schemes import IntegerScheme, PaletteScheme
from voxport.quantize.search import search_palette, search_scales

INT8, INT4 = IntegerScheme(8), IntegerScheme(4, 32)


def weight(rows: int = 24, columns: int = 96, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scheme", [INT8, INT4])
@pytest.mark.parametrize("seed", range(5))
def test_searched_scales_are_never_worse_than_min_max(scheme: IntegerScheme, seed: int) -> None:
    found = search_scales(weight(seed=seed), scheme.group, scheme.range)
    assert found.errors.searched <= found.errors.min_max
    low, high = scheme.range
    assert low <= found.integers.min() and found.integers.max() <= high


def test_the_search_lowers_the_error_of_4_bits_by_5_percent() -> None:
    found = search_scales(weight(256, 256), INT4.group, INT4.range)
    assert found.errors.searched < 0.95 * found.errors.min_max


WEIGHTS = {
    "normal": weight(),
    "uniform": torch.rand(24, 96, generator=torch.Generator().manual_seed(0)) - 0.5,
    "heavy tails": weight() ** 5,
    "constant": torch.full((24, 96), 0.3),
    "negative constant": torch.full((24, 96), -0.3),
    "two values": torch.where(weight() > 0, 1.0, 0.04),
    "ties": (torch.arange(24 * 96).reshape(24, 96) % 15 - 7).float() / 2,
    "zero": torch.zeros(24, 96),
    "one far away": weight().index_put((torch.tensor(3), torch.tensor(5)), torch.tensor(100.0)),
    "tiny": weight() * 1e-9,
}
SEARCHES = {
    "8 bits": lambda values: search_scales(values, INT8.group, INT8.range).errors,
    "4 bits": lambda values: search_scales(values, INT4.group, INT4.range).errors,
    "palette": lambda values: search_palette(values, 4, 8).errors,
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("values", WEIGHTS)
def test_no_weight_is_further_than_half_a_step_from_its_stored_value(values: str, search: str) -> None:
    errors = SEARCHES[search](WEIGHTS[values])
    assert errors.are_plausible, errors


@pytest.mark.parametrize("scheme", [INT8, INT4])
@pytest.mark.parametrize("rounding", ["floor_", "trunc_", "ceil_"])
def test_a_quantiser_that_does_not_round_to_nearest_is_refused(
    monkeypatch: pytest.MonkeyPatch, scheme: IntegerScheme, rounding: str
) -> None:
    monkeypatch.setattr(torch.Tensor, "round_", getattr(torch.Tensor, rounding))
    quantizer = Quantizer(Recipe("r", scheme, scheme))
    with pytest.raises(RecipeError, match=r"layers\.0\.wq: .*more than rounding to nearest"):
        quantizer("layers.0.wq", torch.nn.Linear(96, 24), weight())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1e-12, 1e-6, 1.0, 1e4]))
def test_scales_are_exact_in_bfloat16_and_half_for_any_magnitude(seed: int, size: float) -> None:
    found = search_scales(weight(seed=seed) * size, INT4.group, INT4.range).scale
    assert torch.equal(found, found.bfloat16().float()) and torch.equal(found, found.half().float())


def test_the_first_matching_rule_decides() -> None:
    recipe = Recipe("r", INT4, INT8, (Rule("layers.0.*", None, None), Rule("layers.*", INT8, INT4)))
    assert recipe.scheme_for("layers.0.wq", False) is None
    assert recipe.scheme_for("layers.1.wq", False) == INT8
    assert recipe.scheme_for("other", False) == INT4
    assert recipe.scheme_for("table", True) == INT8


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(RecipeError, match=", ".join(RECIPES)):
        find_recipe("w5")


@pytest.mark.parametrize("scheme", [INT8, INT4])
def test_integer_activations_are_close_to_float_activations(scheme: IntegerScheme) -> None:
    """Rounding is at most 1/254 of the largest activation. Over 96 inputs, outputs change by under 2 %."""
    found = search_scales(weight(), scheme.group, scheme.range)
    linear, x = QuantizedLinear(found.integers, found.scale, scheme), torch.randn(7, 96)
    exact = float_activations(x, linear)
    torch.testing.assert_close(
        exact, F.linear(x, found.integers.float() * found.scale.repeat_interleave(linear.block, 1))
    )
    for kernel in (int8_per_token, int8_per_block):
        distance = (kernel(x, linear) - exact).norm() / exact.norm()
        assert 1e-4 < distance < 2e-2


@pytest.mark.parametrize("shape", [(1, 96), (2, 7, 64), (1, 1, 1024)])
def test_rows_are_rounded_as_by_the_operators_that_are_lowered(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal: for rows of one sign, of zeros, of ties and of subnormal values, and of any size."""
    generator = torch.Generator().manual_seed(0)
    identity = QuantizedLinear(torch.eye(shape[-1], dtype=torch.int8), torch.ones(shape[-1], 1), INT8)
    for _ in range(100):
        x = torch.randn(shape, generator=generator) * 10 ** torch.randint(-8, 5, (*shape[:-1], 1)).float()
        ties = torch.randint(-3, 4, shape, generator=generator) * 0.37
        for rows in (x, x.abs(), -x.abs(), x * 0, ties, x * 1e-40):
            with monkeypatch.context() as patch:
                patch.setattr(torch.compiler, "is_exporting", lambda: True)
                expected = int8_per_token(rows, identity)
            assert torch.equal(int8_per_token(rows, identity), expected)


@pytest.mark.parametrize(("bits", "columns", "bytes_a_row"), [(4, 96, 48), (8, 96, 96), (4, 9, 9)])
def test_packed_integers_take_half_the_memory_and_give_the_same_bits(
    bits: int, columns: int, bytes_a_row: int
) -> None:
    """Integers of 4 bits with an even number of columns are packed, others are not. All integers occur."""
    scheme = IntegerScheme(bits)
    low, high = scheme.range
    integers = torch.arange(low, high + 1, dtype=torch.int8).repeat(columns).reshape(-1, columns)
    linear, x = (
        QuantizedLinear(integers.clone(), torch.rand(len(integers), 1), scheme),
        torch.randn(3, columns),
    )
    before = linear(x)
    linear.pack()
    linear.pack()
    assert linear.weight.shape == (len(integers), bytes_a_row)
    assert torch.equal(linear.integers(), integers) and torch.equal(
        linear.integers(slice(2, 5)), integers[2:5]
    )
    if bytes_a_row < columns:
        with pytest.raises(RuntimeError, match="packed"):
            linear.fuse([linear])
    assert torch.equal(linear(x), before) and torch.equal(
        int8_per_block(x, linear), int8_per_block(x, QuantizedLinear(integers, linear.scale, scheme))
    )


def test_fusing_linears_concatenates_their_rows() -> None:
    parts = [INT4.quantize(weight(seed=seed), "w", is_table=False).module for seed in (1, 2)]
    x = torch.randn(3, 96)
    torch.testing.assert_close(parts[0].fuse(parts)(x), torch.cat([part(x) for part in parts], -1))


LUT4 = PaletteScheme(4, channels=8)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1e-3, 1.0, 1e3]))
def test_palettes_store_the_nearest_values_exact_in_half_precision(seed: int, size: float) -> None:
    w = weight(seed=seed) * size
    found = search_palette(w, LUT4.bits, LUT4.channels)
    assert found.palette.shape == (3, 16) and torch.equal(found.palette, found.palette.half().float())
    assert found.errors.searched <= found.errors.min_max
    held = PalettizedLinear(found.indices, found.palette, LUT4).values()
    distances = (w.reshape(3, -1, 1) - found.palette[:, None, :]).abs()
    torch.testing.assert_close((w - held).abs().reshape(3, -1), distances.amin(-1), rtol=0, atol=1e-6 * size)
    assert found.errors.searched == pytest.approx(float((w - held).square().sum()), rel=1e-4)


def test_palettes_of_normal_weights_reach_the_least_error() -> None:
    """That of 16 values for a normal distribution is known: Max, Quantizing for Minimum Distortion, 1960."""
    errors = search_palette(weight(256, 4096), bits=4, channels=16).errors
    assert errors.searched == pytest.approx(0.009497 * errors.norm, rel=0.01)


def test_chunks_of_a_search_for_palettes_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    values = weight() * torch.arange(1, 25)[:, None]
    whole = search_palette(values, LUT4.bits, LUT4.channels)
    monkeypatch.setattr(voxport.quantize.search, "CHUNK", 1)
    parts = search_palette(values, LUT4.bits, LUT4.channels)
    assert torch.equal(parts.indices, whole.indices) and torch.equal(parts.palette, whole.palette)
    assert parts.errors.searched == pytest.approx(whole.errors.searched)


@pytest.mark.parametrize("columns", [1, 5])
def test_a_palette_may_have_more_values_than_its_group(columns: int) -> None:
    values = weight(3, columns)
    found = search_palette(values, bits=4, channels=1)
    held = PalettizedLinear(found.indices, found.palette, PaletteScheme(4, channels=1)).values()
    assert torch.equal(held, values.half().float())


def test_fused_palettes_concatenate_their_rows() -> None:
    parts = [LUT4.quantize(weight(seed=seed), "w", is_table=False).module for seed in (1, 2)]
    x = weight(3, 96, seed=3)
    assert torch.equal(parts[0].fuse(parts)(x), torch.cat([part(x) for part in parts], -1))


@pytest.mark.parametrize("chunk", [1, 96 * 20, 2**20])
def test_packed_palettes_give_the_same_bits_and_are_not_lowered(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Also where few rows are multiplied together."""
    linear, x = LUT4.quantize(weight(), "w", is_table=False).module, torch.randn(3, 96)
    assert isinstance(linear, PalettizedLinear)
    torch.testing.assert_close(linear(x), x @ linear.values().T)
    monkeypatch.setattr(voxport.quantize.modules, "CHUNK", chunk)
    before = linear(x)
    linear.pack()
    linear.pack()
    assert linear.weight.dtype == torch.float16 and torch.equal(linear(x), before)
    with pytest.raises(RuntimeError, match="packed palettes cannot be lowered"):
        torch.export.export(linear, (x,))


def test_all_unsupported_groups_are_reported_at_once_and_the_remedy_works(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--target", "onnx", "--quant", "w4g128", "--dry-run"]
    assert export(arguments) == 2
    error = capsys.readouterr().err
    assert "groups of 128 do not divide the 96 inputs of layers.0.attention.wq" in error
    rules = re.findall(r"'([^']+=none)'", error)
    assert export([*arguments, *(part for rule in rules for part in ("--quant-rule", rule))]) == 0


@pytest.mark.parametrize(
    ("scheme", "shape", "is_table", "says"),
    [
        (INT4, (24, 100), False, "groups of 32 do not divide the 100 inputs"),
        (LUT4, (20, 96), False, "8 channels do not divide the 20 outputs"),
        (INT4, (24, 96), True, "excludes the table"),
        (LUT4, (24, 96), True, "excludes the table"),
    ],
)
def test_a_shape_that_cannot_be_stored_is_explained(
    scheme: IntegerScheme | PaletteScheme, shape: tuple[int, int], is_table: bool, says: str
) -> None:
    assert says in str(scheme.reason_not_storable(shape, is_table))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=str)
def test_a_manifest_holds_the_type_and_all_fields_of_a_scheme(recipe: Recipe) -> None:
    for scheme in recipe.schemes:
        fields = scheme.to_entry().model_dump()
        assert fields.pop("type") == scheme.type and type(scheme)(**fields) == scheme


def test_the_correlation_bar_falls_with_fewer_bits() -> None:
    limits = [PaletteScheme(bits, channels=8).min_correlation for bits in range(1, 9)]
    assert limits == sorted(limits) and (limits[3], limits[7]) == (0.9, 0.99)


def test_storage_is_the_bytes_of_the_module() -> None:
    """Counts all buffers, before and after packing. An artifact has no zero points, and scales of 2 bytes."""
    for scheme in (INT4, INT8, LUT4):
        module = scheme.quantize(weight(), "w", is_table=False).module
        storage = scheme.storage((24, 96))
        assert held_bytes(module) == pytest.approx(storage.loaded, rel=0.01)
        module.pack()
        assert held_bytes(module) == pytest.approx(storage.packed, rel=0.01)
    assert INT4.storage((24, 96)).artifact == 24 * (96 / 2 + 3 * 2)


def held_bytes(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def test_a_kernel_is_set_within_its_context_only() -> None:
    linear = INT8.quantize(weight(), "w", is_table=False).module
    with linear_kernel(linear, int8_per_token):
        with pytest.raises(ZeroDivisionError), linear_kernel(linear, int8_per_block):
            assert linear.kernel is int8_per_block
            raise ZeroDivisionError
        assert linear.kernel is int8_per_token
    assert linear.kernel is float_activations


@pytest.mark.parametrize("group", [32, None])
def test_the_number_of_threads_does_not_change_the_integers(group: int | None) -> None:
    """Chunks that are searched at the same time keep their order, and torch keeps its threads."""
    weight = torch.randn(700, 4096, generator=torch.Generator().manual_seed(0))
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(search_scales(weight, group, (-8, 7)))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    alone, together = found
    assert torch.equal(alone.integers, together.integers) and torch.equal(alone.scale, together.scale)
    assert alone.errors == together.errors
