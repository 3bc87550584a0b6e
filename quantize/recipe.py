"""Recipes: which weight is held in how many bits. Data only; how a target multiplies such weights is not decided here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from bundle.errors import RecipeError

GROUP = 32  # weights per scale of a 4-bit scheme: the smallest block that all three targets' kernels take
WIDE_GROUP = 128  # a quarter of the scales
PALETTE_CHANNELS = (
    16  # rows per palette: a fair of Core ML's sizes (4 to 32); 16 values of 16 bits cost nothing beside them
)
# What an output must keep of its correlation with full precision, by the bits of the coarsest weight on its way. A floor for
# sanity, not a promise of quality: rounding to 8 bits moves a weight by 0.7 %, to 4 by 9 %, and some ten products follow each other.
LEAST_CORRELATION = {8: 0.99, 4: 0.9}


@dataclass(frozen=True)
class Scheme:
    """Symmetric integers with one scale per row (`group=None`) or per `group` weights along a row.

    activations: `kernel` leaves them to the target (integer on ONNX and XNNPACK, float on Core ML);
        `int8` asks for dynamic 8-bit activations everywhere, spelled out where a target has no such kernel.
    channels: not integers and scales but a palette of 2^bits values per so many rows, which Core ML alone has.
    """

    bits: int
    group: int | None = None
    activations: str = "kernel"
    channels: int | None = None

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest integer; 8 bits leave out -128, so that a negated weight is a weight."""
        return (-127, 127) if self.bits == 8 else (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1)


@dataclass(frozen=True)
class Rule:
    """Schemes for every linear and table whose path matches the shell pattern; None keeps it in floating point."""

    pattern: str
    linears: Scheme | None
    tables: Scheme | None


@dataclass(frozen=True)
class Recipe:
    """Ordered rules over module paths; the first that matches decides. `tables` is for embeddings, `linears` for the rest."""

    name: str
    linears: Scheme | None
    tables: Scheme | None
    rules: tuple[Rule, ...] = ()

    def scheme_for(self, path: str, is_table: bool) -> Scheme | None:
        """What holds the weight of the module at `path`; None means floating point."""
        for rule in self.rules:
            if fnmatchcase(path, rule.pattern):
                return rule.tables if is_table else rule.linears
        return self.tables if is_table else self.linears

    def with_rules(self, rules: tuple[Rule, ...]) -> Recipe:
        """The same recipe with `rules` asked first."""
        return replace(self, rules=rules + self.rules)

    def describe(self) -> dict[str, Any]:
        """For the manifest: all that decides, in order."""
        return {
            "name": self.name,
            "linears": _describe(self.linears),
            "tables": _describe(self.tables),
            "rules": [
                {
                    "pattern": rule.pattern,
                    "linears": _describe(rule.linears),
                    "tables": _describe(rule.tables),
                }
                for rule in self.rules
            ],
        }


def _describe(scheme: Scheme | None) -> dict[str, Any] | None:
    if scheme is None:
        return None
    if scheme.channels:
        return {"type": "palette", "bits": scheme.bits, "channels": scheme.channels}
    return {"type": "integer", "bits": scheme.bits, "group": scheme.group, "activations": scheme.activations}


_INT8 = Scheme(bits=8)
_INT4 = Scheme(bits=4, group=GROUP)
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("none", linears=None, tables=None),
        Recipe("w8", linears=_INT8, tables=_INT8),
        Recipe("w4", linears=_INT4, tables=_INT8),
        Recipe("w4g128", linears=Scheme(bits=4, group=WIDE_GROUP), tables=_INT8),
        Recipe("lut4", linears=Scheme(bits=4, channels=PALETTE_CHANNELS), tables=_INT8),
        Recipe("8da4w", linears=Scheme(bits=4, group=GROUP, activations="int8"), tables=_INT8),
    )
}


def find_recipe(name: str) -> Recipe:
    """Raises RecipeError that lists the recipes there are."""
    if name not in RECIPES:
        raise RecipeError(f"recipe {name!r} is unknown; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def parse_rule(text: str) -> Rule:
    """`PATTERN=RECIPE`, as in `layers.0.*=none`: that recipe for every path that matches."""
    pattern, separator, name = text.rpartition("=")
    if not separator or not pattern:
        raise RecipeError(f"--quant-rule {text!r}: expected PATTERN=RECIPE, as in 'layers.0.*=none'")
    recipe = find_recipe(name)
    return Rule(pattern, recipe.linears, recipe.tables)
