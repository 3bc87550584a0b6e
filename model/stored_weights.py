"""`StoredWeights`: the tensors of a checkpoint folder, in the layout of the published files or of MLX.

A tensor has its published name or mlx-audio's name. Its shape decides its layout, or
`voxport_layout` in the metadata of its file if both layouts have that shape.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from voxport.bundle.errors import CheckpointError, IntegrityError
from voxport.model.checkpoint import DTYPES, Shapes, refuse_other_names
from voxport.model.config import Config
from voxport.model.family import Family
from voxport.model.mlx.layout import BITS, FLOATS, GROUPS, MlxLayout, Packing, config_faults
from voxport.model.mlx.tensor_layouts import (
    COMPUTED,
    LAYOUT_KEY,
    Layout,
    Pair,
    Stored,
    dequantized,
    folded_names,
    stored_tensors,
    tagged_layout,
)

PACKED, BYTE = "U32", "U8"  # dtypes of words that MLX packs, and of scales of packed floats
BYTES = {"BF16": 2, "F16": 2, "F32": 4, PACKED: 4, BYTE: 1}  # bytes of a value in a file
RECIPE_KEY = "voxport_recipe"  # key in a weight file's metadata: the recipe of its integers
SCALES, BIASES, WEIGHT = ".scales", ".biases", ".weight"


@dataclass(frozen=True)
class Found:
    """A tensor in a file: its name and shape there, layout and dtype. MLX may have packed it."""

    name: str
    shape: tuple[int, ...]
    stored: Stored
    layout: Layout
    dtype: str
    packing: Packing | None = None


class StoredWeights:
    """The weights of a folder by published name. `tensors` say how each is stored.

    `is_mlx`: the folder has the files of mlx-audio. `computed`: names in the files of buffers that a model
    computes, which are left out. `pairs`: weight norms of the published model, by the name of the weight.
    `folded`: those whose weight is in the files in their place, which has an entry in `tensors`. Raises
    CheckpointError with every fault.
    """

    def __init__(self, folder: Path, family: Family, config: Config):
        mlx = family.mlx
        self.folder, self.files = folder, tuple(family.layout.weight_files(folder))
        self.is_mlx = isinstance(family.layout, MlxLayout)
        self._checkpoint = family.open_checkpoint(folder)
        self._mlx = mlx
        self.is_random = self._checkpoint.is_random
        names, faults = self._published_names()
        self.tensors: dict[str, Found] = {}
        self.computed: tuple[str, ...] = ()
        self.expected = _expected(family, config, names)
        self.pairs, self.folded = folded_names(self.expected), dict[str, Pair]()
        faults += self._folded(names)
        faults += self._find(names, self._in_files(), tuple(family.unused))
        if not faults and (self.is_mlx or mlx.published_config is None):
            faults = config_faults(folder, mlx, self._packed)
        if faults:
            raise CheckpointError(*faults)

    def _folded(self, names: dict[str, str]) -> list[str]:
        """Fills `folded`. Faults are weights beside a part of their weight norm; they leave `names`."""
        faults = []
        for weight, pair in self.pairs.items():
            if weight not in names or weight in self.expected:
                continue
            parts = [names[name] for name in pair if name in names]
            if parts:
                stored_name = names.pop(weight)
                faults.append(
                    f"{self._checkpoint.path(stored_name)}: tensor {stored_name} is there beside {parts[0]}, "
                    "a part of its weight norm, expected one; convert the published checkpoint again"
                )
            else:
                self.folded[weight] = pair
        return faults

    def _in_files(self) -> dict[str, Stored]:
        """What the files must have: of each weight norm the pair, or the weight."""
        parts = {name for pair in self.folded.values() for name in pair}
        weights = {weight: self.expected[pair.v] for weight, pair in self.folded.items()}
        return {name: stored for name, stored in self.expected.items() if name not in parts} | weights

    def _find(self, names: dict[str, str], expected: dict[str, Stored], unused: tuple[str, ...]) -> list[str]:
        """Fills `tensors` from names in the files by published name. Returns faults."""
        absent, extra = sorted(expected.keys() - names.keys()), sorted(names.keys() - expected.keys())
        others = [name for name in extra if not unused or not name.startswith(unused)]
        if others and absent:
            refuse_other_names(self._checkpoint.path(names[others[0]]), others, absent)
        faults = [
            f"{self.folder}: tensor {name} missing, also as {self.mlx_name(name)}; the folder was converted "
            "in part, or its configuration belongs to another model; convert again"
            for name in absent
        ]
        for name, stored_name in sorted(names.items()):
            if name not in expected and name.rpartition(".")[2] in COMPUTED:
                self.computed += (stored_name,)
                continue
            if name not in expected and not (unused and name.startswith(unused)):
                faults.append(
                    f"{self._checkpoint.path(stored_name)}: tensor {stored_name} not part of the model that "
                    "the configuration describes; give files of one model"
                )
                continue
            try:
                stored = expected.get(name) or self._undescribed(stored_name)
                self.tensors[name] = self._found(stored_name, stored)
            except CheckpointError as error:
                faults += error.faults
        self.computed = tuple(sorted(self.computed))
        return faults

    def _undescribed(self, name: str) -> Stored:
        """An unused tensor that the family does not describe. Raises CheckpointError on a kernel."""
        shape = self._checkpoint.shape(name)
        if len(shape) > 2:
            raise CheckpointError(
                f"{self._checkpoint.path(name)}: tensor {name}: shape {list(shape)} may be a kernel of "
                "either layout, and the configuration does not describe it; leave it out, no graph needs it"
            )
        return Stored(shape)

    @property
    def _packed(self) -> dict[str, Packing]:
        """The packed layers by path in the file."""
        return {
            each.name.removesuffix(WEIGHT): each.packing for each in self.tensors.values() if each.packing
        }

    def _published_names(self) -> tuple[dict[str, str], list[str]]:
        """Names in the files by published name, and faults. Scales and biases are left out."""
        checkpoint, names, faults = self._checkpoint, defaultdict[str, list[str]](list), []
        for name in checkpoint.names:
            path = name.removesuffix(SCALES).removesuffix(BIASES)
            if path == name:
                names[self._mlx.published(name)].append(name)
            elif path + WEIGHT not in checkpoint.names or checkpoint.dtype(path + WEIGHT) != PACKED:
                faults.append(f"{checkpoint.path(name)}: tensor {name}: belongs to no packed weight")
        for name, found in names.items():
            if len(found) > 1:
                faults.append(
                    f"{checkpoint.path(found[0])}: tensors {' and '.join(sorted(found))} are both {name}; "
                    "the folder was converted in part; convert the published checkpoint again"
                )
        return {name: found[0] for name, found in names.items()}, faults

    def _found(self, name: str, stored: Stored) -> Found:
        """Raises CheckpointError if shape or dtype do not fit."""
        checkpoint = self._checkpoint
        shape, dtype = checkpoint.shape(name), checkpoint.dtype(name)
        where = f"{checkpoint.path(name)}: tensor {name}"
        if dtype == PACKED:
            return self._packed_weight(name, stored, where)
        layouts = stored.layouts(shape)
        if not layouts:
            other = "" if stored.order is None else f", or {list(stored.mlx_shape)} as MLX stores it"
            raise CheckpointError(
                f"{where}: shape {list(shape)}, expected {list(stored.shape)} from the configuration{other}; "
                "give configuration and weights of one model"
            )
        if dtype not in DTYPES:
            raise CheckpointError(f"{where}: dtype {dtype}, expected one of {', '.join(DTYPES)}")
        layout = tagged_layout(checkpoint, name, self._mlx) if stored.is_ambiguous else layouts[0]
        return Found(name, shape, stored, layout, dtype)

    def _packed_weight(self, name: str, stored: Stored, where: str) -> Found:
        """A weight that MLX packed: words [N, K * bits / 32] and scales [N, K / group]. Integers also have
        biases; floats have scales of 8 bits.
        """
        checkpoint, path = self._checkpoint, name.removesuffix(WEIGHT)
        kinds = {
            end: checkpoint.dtype(path + end) for end in (SCALES, BIASES) if path + end in checkpoint.names
        }
        is_float = kinds == {SCALES: BYTE}
        for end in () if is_float else (SCALES, BIASES):
            if end not in kinds:
                raise CheckpointError(
                    f"{where}: packed integers without {path + end}; convert the model again"
                )
            if kinds[end] not in DTYPES:
                raise CheckpointError(
                    f"{where}: {path + end} has dtype {kinds[end]}, expected one of {', '.join(DTYPES)}; "
                    "convert the model again"
                )
        if len({*kinds.values()}) > 1:  # one of them would be rounded when they are written again
            raise CheckpointError(
                f"{where}: scales are {kinds[SCALES]} and biases {kinds[BIASES]}, expected one dtype; "
                "convert the model again"
            )
        shape, sides = checkpoint.shape(name), [checkpoint.shape(path + end) for end in kinds]
        known = FLOATS if is_float else tuple(Packing(bits, group) for bits in BITS for group in GROUPS)
        fitting = (each for each in known if {(shape, side) for side in sides} == {each.shapes(stored.shape)})
        if not (packing := next(fitting, None)):
            kind = "floats of MLX" if is_float else f"{', '.join(map(str, BITS))} bits"
            groups = ", ".join(str(group) for group in sorted({packing.group for packing in known}))
            raise CheckpointError(
                f"{where}: packed shape {list(shape)} and scales {list(sides[0])} are not those of "
                f"{list(stored.shape)} as {kind} in groups of {groups}; convert the model again"
            )
        return Found(name, shape, stored, "pytorch", PACKED, packing)

    @property
    def is_for_mlx(self) -> bool:
        """Whether they differ from a published checkpoint's."""
        return (
            self.is_mlx
            or bool(self.folded)
            or any(found.packing or found.layout == "mlx" for found in self.tensors.values())
        )

    @property
    def is_for_modules(self) -> bool:
        """Whether they are in the layout of MLX's own modules: no weight norms, every kernel reordered. If
        mlx-audio stores every kernel alike, a file says which of the two it is.
        """
        orders = {
            (self._mlx.is_reordered(name), found.layout == "mlx")
            for name, found in self.tensors.items()
            if found.stored.order and not found.stored.is_same_in_both
        }
        is_mlx = len(self.folded) == len(self.pairs) and all(is_mlx for _, is_mlx in orders)
        if not (is_mlx and self.is_for_mlx):
            return False
        if self.folded or any(not is_reordered for is_reordered, _ in orders):
            return True
        names = {self._checkpoint.path(found.name): found.name for found in self.tensors.values()}
        return {self._checkpoint.metadata(name).get(LAYOUT_KEY) for name in names.values()} == {"mlx"}

    @property
    def recipe(self) -> str | None:
        """Name of the recipe of the integers, as a file says."""
        names = (self._checkpoint.metadata(found.name) for found in self.tensors.values() if found.packing)
        return next((metadata[RECIPE_KEY] for metadata in names if RECIPE_KEY in metadata), None)

    def mlx_name(self, published: str) -> str:
        """mlx-audio's name of a tensor."""
        return self._mlx.name(published)

    def has(self, expected: Shapes) -> bool:
        """Whether every expected tensor is there in its shape."""
        parts = {name for pair in self.folded.values() for name in pair}
        return all(
            name in self.expected
            and self.expected[name].shape == shape
            and (name in self.tensors or name in parts)
            for name, shape in expected.items()
        )

    def scale_dtype(self, name: str) -> str:
        """Dtype of the scales of a packed weight, by its name in the file."""
        return self._checkpoint.dtype(name.removesuffix(WEIGHT) + SCALES)

    def raw(self, name: str) -> torch.Tensor:
        """A tensor as stored, by its name in the file."""
        return self._checkpoint.tensor(name)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor by its published name, in the layout of PyTorch. A packed one becomes floats. Raises
        CheckpointError if a value is not finite.
        """
        found = self.tensors[name]
        if not found.packing:
            return found.stored.converted(self.raw(found.name), found.layout, "pytorch")
        words, scales, *biases = self.packed(found)
        values = dequantized(words, scales, biases[0] if biases else None, found.packing)
        if not all(map(torch.isfinite, values.aminmax())):
            raise CheckpointError(
                f"{self._checkpoint.path(found.name)}: tensor {found.name}: {found.packing} give values that "
                "are not finite; convert the model again"
            )
        return values

    def packed(self, found: Found) -> tuple[torch.Tensor, ...]:
        """Words, scales, and biases of integers, as stored."""
        path = found.name.removesuffix(WEIGHT)
        names = (path + end for end in (WEIGHT, SCALES, BIASES))
        return tuple(self.raw(name) for name in names if name in self._checkpoint.names)


def _expected(family: Family, config: Config, names: Collection[str]) -> dict[str, Stored]:
    """The tensors that files with `names` must have: those of graphs, and of each prefix of unused ones those
    that are described, if the files have any of them.
    """
    described = stored_tensors(family.build_all(config))
    needed = stored_tensors(family.build_root(config))
    others = described.keys() - needed.keys()
    found = tuple(
        prefix
        for prefix in family.unused
        if any(name in others and name.startswith(prefix) for name in names)
    )
    added = {name: described[name] for name in others if found and name.startswith(found)}
    return needed | added


def is_for_mlx(folder: Path, family: Family, config: Config) -> bool:
    """Whether the weights are complete and have mlx-audio's names."""
    try:
        stored = StoredWeights(folder, family, config)
    except IntegrityError:
        return False
    return stored.is_for_mlx
