"""Recipes: the scheme of each weight of a model, as data. This module does not import torch."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from voxport.bundle.errors import RecipeError
from voxport.bundle.manifest import RecipeEntry, RuleEntry, SchemeEntry
from voxport.bundle.names import did_you_mean, find_name
from voxport.quantize.schemes import IntegerScheme, PaletteScheme, Scheme

AUTO, AUTO_BITS = "auto", 4.5  # the name of a mixture that calibration chooses, and its bits per weight
AUTO_BASE = "w4"  # its recipe where no rule says otherwise
GROUP = 32  # weights per scale: the smallest block that the 4-bit kernels of all targets take
WIDE_GROUP = 128  # a quarter of the scales
PALETTE_CHANNELS = 16  # rows per palette; Core ML takes 4 to 32; palettes are small compared with indices
FEW_CHANNELS, MANY_CHANNELS = 8, 32  # as in the presets of apple/coreai-models for iOS


@dataclass(frozen=True)
class Rule:
    """Schemes for every linear and table whose path matches the shell pattern. None keeps floating point."""

    pattern: str
    linears: Scheme | None
    tables: Scheme | None

    def to_entry(self) -> RuleEntry:
        """For the manifest."""
        return RuleEntry(pattern=self.pattern, linears=_to_entry(self.linears), tables=_to_entry(self.tables))


@dataclass(frozen=True)
class Recipe:
    """Ordered rules over module paths. The first match decides.

    Without a match, `tables` is for embeddings and `linears` for linears.
    """

    name: str
    linears: Scheme | None
    tables: Scheme | None
    rules: tuple[Rule, ...] = ()

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """All schemes that the recipe and its rules name, each once."""
        named = (self.linears, self.tables, *(s for rule in self.rules for s in (rule.linears, rule.tables)))
        return tuple(dict.fromkeys(scheme for scheme in named if scheme is not None))

    def scheme_for(self, path: str, is_table: bool) -> Scheme | None:
        """The scheme of the weight of the module at `path`. None means floating point."""
        for rule in self.rules:
            if fnmatchcase(path, rule.pattern):
                return rule.tables if is_table else rule.linears
        return self.tables if is_table else self.linears

    def with_rules(self, rules: tuple[Rule, ...]) -> "Recipe":
        """The same recipe with `rules` before its own."""
        return replace(self, rules=rules + self.rules)

    def to_entry(self) -> RecipeEntry:
        """For the manifest: everything that decides, in order."""
        return RecipeEntry(
            name=self.name,
            linears=_to_entry(self.linears),
            tables=_to_entry(self.tables),
            rules=tuple(rule.to_entry() for rule in self.rules),
        )


def _to_entry(scheme: Scheme | None) -> SchemeEntry | None:
    return None if scheme is None else scheme.to_entry()


_INT8 = IntegerScheme(bits=8)
_INT4 = IntegerScheme(bits=4, group=GROUP)
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("none", linears=None, tables=None),
        Recipe("w8", linears=_INT8, tables=_INT8),
        Recipe("w8g32", linears=IntegerScheme(bits=8, group=GROUP), tables=_INT8),
        Recipe("w8g128", linears=IntegerScheme(bits=8, group=WIDE_GROUP), tables=_INT8),
        Recipe("w4", linears=_INT4, tables=_INT8),
        Recipe("w4g128", linears=IntegerScheme(bits=4, group=WIDE_GROUP), tables=_INT8),
        Recipe("lut4", linears=PaletteScheme(bits=4, channels=PALETTE_CHANNELS), tables=_INT8),
        Recipe("lut4g8", linears=PaletteScheme(bits=4, channels=FEW_CHANNELS), tables=_INT8),
        Recipe("lut4g32", linears=PaletteScheme(bits=4, channels=MANY_CHANNELS), tables=_INT8),
        Recipe("w4a32", linears=IntegerScheme(bits=4, group=GROUP, activations="float"), tables=_INT8),
        Recipe("w8a32", linears=IntegerScheme(bits=8, activations="float"), tables=_INT8),
        Recipe("8da4w", linears=IntegerScheme(bits=4, group=GROUP, activations="int8"), tables=_INT8),
    )
}
NEAREST = {  # patterns of names in other programs
    r"[wq]?(int)?4[-_]?a(int)?8|w4a8.*": "8da4w",
    r"(b?f|b?float|fp)[-_]?16|half": "none, with --compute-precision float16",
    r"(f|float|fp)[-_]?32|full": "none",
    r"(awq|gptq)(-?int4)?": "w4g128",
    r"q8_0|(int|[wq])?8([-_]?bits?)?[-_]?(g|gs|group|block)[-_]?32": "w8g32",
    r"(4bit_)?(weight_)?palettized_group(8|32)|lut4c(8|32)": "lut4g8 or lut4g32",
    r".*palett?i.*|pal[-_]?[2-8]|lut.*|k-?means": "lut4",
    r"(u?int|[wqi]|i?q|fp|[mn][xvf](fp)?)?[-_]?[2-4]([-_]?bits?|[-_]\w+|a16|g32)?|4b": "w4",
    r"(u?int|[wqi]|i?q|fp|mxfp)?[-_]?[5-8]([-_]?bits?|[-_]\w+|a16|a8)?|8b": "w8",
}


def find_recipe(name: str) -> Recipe:
    """Raises RecipeError that lists the known recipes."""
    found = find_name(name, RECIPES)
    if found not in RECIPES:
        close = did_you_mean(name, RECIPES, NEAREST)
        raise RecipeError(f"recipe {name!r} is unknown; known recipes: {', '.join(RECIPES)}{close}")
    return RECIPES[found]


def with_float_activations(scheme: object) -> str | None:
    """The recipe whose linears differ from `scheme` by activations that stay floats, if there is one."""
    if not isinstance(scheme, IntegerScheme):
        return None
    floats = replace(scheme, activations="float")
    return next((name for name, recipe in RECIPES.items() if recipe.linears == floats), None)


def with_min_bits(name: str, bits: int) -> str:
    """The recipe `name`, or `w8` if its linears have fewer than `bits` bits. Raises RecipeError."""
    linears = find_recipe(name).linears
    return "w8" if linears and linears.bits < bits else name


def parse_rule(text: str) -> Rule:
    """Parses `PATTERN=RECIPE`, such as `layers.0.*=none`: that recipe for every path that matches."""
    pattern, separator, name = text.rpartition("=")
    if not separator or not pattern:
        raise RecipeError(f"quantisation rule {text!r}: expected PATTERN=RECIPE, such as 'layers.0.*=none'")
    recipe = find_recipe(name)
    return Rule(pattern, recipe.linears, recipe.tables)
