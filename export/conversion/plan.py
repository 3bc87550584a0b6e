"""What a conversion writes: the tensors of each file, before any value is read."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import BaseModel
from torch import nn

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.export.conversion.outputs import STORED, Conversion, Output, OutputMaker, packing_of
from voxport.model.checkpoint_layout import WeightFile
from voxport.model.family import Family
from voxport.model.mlx.layout import Packing, quantization_of
from voxport.model.stored_weights import WEIGHT, StoredWeights
from voxport.quantize.recipe import RECIPES, Recipe
from voxport.quantize.schemes import IntegerScheme

NOT_TAKEN = "mlx-audio takes no integers there"
KEPT = "the family keeps them as floats"
NO_GROUP = "no group of the recipe divides the inputs"


@dataclass(frozen=True)
class Plan:
    """A conversion that is about to be written.

    files: outputs by path.
    documents: contents of configuration files that are not copied, by name.
    integers: how MLX packs a weight, by MLX module path.
    floats: why a linear or table stays a float beside integers, by MLX path.
    recipe: name of the recipe of the integers; None if it is not known.
    """

    family: Family
    config: BaseModel
    source: StoredWeights
    conversion: Conversion
    files: dict[str, list[Output]]
    documents: dict[str, Json]
    integers: dict[str, Packing]
    floats: dict[str, str]
    recipe: str | None

    @property
    def outputs(self) -> list[Output]:
        return [output for outputs in self.files.values() for output in outputs]

    @property
    def size(self) -> int:
        return sum(output.size for output in self.outputs)


def make_plan(family: Family, config: BaseModel, source: StoredWeights, conversion: Conversion) -> Plan:
    """Raises UsageError."""
    root = family.build_all(config)  # on the meta device
    _check(family, source, conversion)
    other, documents = family.transformers, family.layout.published_documents(source.folder)
    file = other.written_file(config) if other and conversion.to == "transformers" else WeightFile(Path())
    modules, maker = dict(root.named_modules()), OutputMaker(source, family, conversion, file)
    named_floats = _float_entries(source) if conversion.keeps_integers else set()
    integers: dict[str, Packing] = {}
    floats, outputs = dict[str, str](), list[Output]()
    for name, found in source.tensors.items():
        path, mlx_path = name.removesuffix(WEIGHT), source.mlx_name(name).removesuffix(WEIGHT)
        is_weight = name.endswith(WEIGHT) and name not in source.folded
        module = modules.get(path) if is_weight else None
        is_table = isinstance(module, nn.Embedding)
        is_layer = conversion.to == "mlx" and isinstance(module, nn.Linear | nn.Embedding)
        scheme = None
        if is_layer and not family.is_folded(path):
            scheme = conversion.recipe.scheme_for(path, is_table)
        packing = packing_of(scheme, found.stored.shape, conversion.packing) if scheme else None
        if found.packing and conversion.keeps_integers:
            integers[mlx_path] = found.packing
            outputs.append(maker.packed(name))
        elif isinstance(scheme, IntegerScheme) and packing and family.mlx.takes_integers(path):
            integers[mlx_path] = packing
            outputs.append(maker.quantised(name, scheme, packing, is_table))
        else:
            if (is_layer and not conversion.keeps_integers) or (mlx_path in named_floats and module):
                floats[mlx_path] = _why_float(family, path, conversion.recipe)
            outputs += maker.floats(name)
    outputs.sort(key=lambda output: output.published)  # a weight has another place than its weight norm
    written = None if conversion.packing else conversion.recipe.name
    recipe = source.recipe if conversion.keeps_integers else written
    is_known = bool(integers) and recipe in RECIPES  # a file of another program may have any text there
    files = _files(outputs, source, family, conversion)
    if other and conversion.to == "transformers":
        files = {str(file.path): outputs}
        largest = max(outputs, key=lambda output: output.size).entries[0]
        documents = other.documents(source.folder, config, str(STORED[largest.dtype]).removeprefix("torch."))
    return Plan(
        family, config, source, conversion, files, documents, integers, floats, recipe if is_known else None
    )


def _check(family: Family, source: StoredWeights, conversion: Conversion) -> None:
    """Raises UsageError if MLX cannot hold the model, or if integers would be rounded again."""
    if conversion.recipe.name != "none" and any(found.packing for found in source.tensors.values()):
        raise UsageError(
            f"{source.folder}: has integers already; leave the recipe out, or convert another folder",
            field="quant",
        )
    if conversion.to == "mlx" and not family.mlx.model_type:
        raise UsageError(
            f"to mlx: mlx-audio has no model for {family.title}; convert to published", field="to"
        )
    if conversion.to == "transformers" and not family.transformers:
        raise UsageError(
            f"to transformers: it has no layout for {family.title} besides the published one; convert to "
            "published",
            field="to",
        )


def _why_float(family: Family, path: str, recipe: Recipe) -> str:
    is_kept = any(rule.linears is None and fnmatchcase(path, rule.pattern) for rule in recipe.rules)
    if is_kept or family.is_folded(path):
        return KEPT
    return NO_GROUP if family.mlx.takes_integers(path) else NOT_TAKEN


def _float_entries(source: StoredWeights) -> set[str]:
    """MLX paths that `config.json` of the source says are no integers."""
    return {path for path, entry in quantization_of(source.folder).items() if entry is False}


def _files(
    outputs: list[Output], source: StoredWeights, family: Family, conversion: Conversion
) -> dict[str, list[Output]]:
    """The outputs of each file, by path. Names in a file do not have its prefix."""
    folder, places = source.folder, dict(family.mlx.weights)
    if conversion.to == "published":
        published = family.layouts[0].single_files(folder)
        places = {file.prefix: file.path.relative_to(folder).as_posix() for file in published}
    files: dict[str, list[Output]] = {}
    for output in outputs:
        prefix = max((prefix for prefix in places if output.published.startswith(prefix)), key=len)
        entries = tuple(entry._replace(name=entry.name.removeprefix(prefix)) for entry in output.entries)
        files.setdefault(places[prefix], []).append(Output(output.published, entries, output.make))
    return files
