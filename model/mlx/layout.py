"""`MlxLayout`: how mlx-audio stores the checkpoints of a family. Imports no torch.

Only conversions read it. Other commands name the conversion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import JsonValue

from voxport.bundle.errors import CheckpointError
from voxport.bundle.json_types import Json
from voxport.model.checkpoint_layout import CheckpointLayout, Renames, WeightFile
from voxport.model.config import Config
from voxport.model.download import read_json, read_object

if TYPE_CHECKING:
    import torch

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
QUANTIZATION = "quantization"  # key of the configuration
QUANTIZATION_CONFIG = "quantization_config"  # read if that key is missing
MODEL_TYPE = "model_type"
OWN_KEYS = (MODEL_TYPE, QUANTIZATION, QUANTIZATION_CONFIG)  # keys of config.json that no published file has
MLX_WEIGHTS = "the weights are those for MLX; first run: voxport convert FOLDER OUT --to published"
WORD = 32  # bits
NUMBER = r"(\d+)"
CONVERT_AGAIN = "convert the model again"
DEFAULT: Json = {
    "group_size": 64,
    "bits": None,
    "mode": "affine",
}  # mlx-audio's values for all layers without an entry


class Packing(NamedTuple):
    """How MLX packs the weight of a layer: bits of a value, values that share a scale, and MLX's mode."""

    bits: int
    group: int
    mode: str = "affine"

    def to_entry(self) -> Json:
        """For `quantization` of `config.json`."""
        return {"group_size": self.group, "bits": self.bits, "mode": self.mode}

    def shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Shapes of words and scales for a weight [N, K]; None if MLX cannot pack it so."""
        if len(shape) != 2 or shape[1] % self.group:
            return None
        rows, columns = shape
        return (rows, columns * self.bits // WORD), (rows, columns // self.group)

    def __str__(self) -> str:
        return _text(self.to_entry())


PACKINGS = {  # what MLX takes for a mode, if nothing else is said
    packing.mode: packing
    for packing in (Packing(4, 64), Packing(4, 32, "mxfp4"), Packing(4, 16, "nvfp4"), Packing(8, 32, "mxfp8"))
}
FLOATS = tuple(packing for packing in PACKINGS.values() if packing.mode != "affine")
GROUPS = (32, 64, 128)  # integers that share a scale
BITS = (1, 2, 3, 4, 5, 6, 8)  # widths of integers
Packed = Mapping[str, Packing]  # by path of the layer


class MlxLayout(CheckpointLayout[Config]):
    """Names, layouts and configuration in a folder of mlx-audio.

    model_type: in `config.json`; empty for a family that mlx-audio does not have.
    renames: pairs of prefixes of tensor names, published and of mlx-audio, as `Renames` takes them.
    reordered: prefixes of published names whose convolutions are written in MLX's order of axes. mlx-audio
        reorders the others when it loads them. All are read in either order.
    integers: patterns of published module paths that may be integers in mlx-audio.
    weights: paths of the weight files by prefix of the published names; the longest prefix decides.
    copied: names of files that both folders have.
    published_config: name of the published configuration that a folder of mlx-audio need not have.
    """

    marker = f"{CONFIG} of mlx-audio"
    model_type = ""
    renames: tuple[tuple[str, str], ...] = ()
    reordered: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    weights: tuple[tuple[str, str], ...] = (("", WEIGHTS),)
    copied: tuple[str, ...] = ()
    published_config: str | None = None

    def __init__(self, published: CheckpointLayout[Config]):
        """`published` is the layout that has the same tokenizer and voices."""
        self.published_layout = published

    def mlx_config(self, folder: Path) -> Json:
        """What `config.json` holds besides the model's type, for a folder that has the published
        configuration.
        """
        return dict(read_json(folder, self.published_config or CONFIG))

    def restored(self, content: Json, source: str) -> Json:
        """The published configuration, from the content of `source`, a `config.json`. Raises
        CheckpointError.
        """
        return {name: value for name, value in content.items() if name not in OWN_KEYS}

    def published_documents(self, folder: Path) -> dict[str, Json]:
        name = self.published_config
        if not name or (folder / name).exists():
            return {}
        return {name: self.restored(read_mlx_config(folder), str(folder / CONFIG))}

    def replaces_published(self, folder: Path, weights: Collection[str]) -> bool:
        """Whether the weights of `folder` are in files that only this layout has."""
        if not self.model_type or any(
            file.path.exists() for file in self.published_layout.weight_files(folder)
        ):
            return False
        return any(file.path.exists() for file in self.weight_files(folder))

    def adapted(self, folder: Path, adapter: Path) -> Self:
        raise CheckpointError(f"{folder}: {MLX_WEIGHTS}; then merge the adapter")

    def detect(self, folder: Path) -> bool:
        return read_object(folder / CONFIG).get(MODEL_TYPE) == self.model_type

    def load_config(self, folder: Path) -> Config:
        name = self.published_config
        if not name or (folder / name).is_file() or not (content := read_mlx_config(folder)):
            return self.published_layout.load_config(folder)
        source = str(folder / CONFIG)
        return self.published_layout.parse_config(self.restored(content, source), source)

    def single_files(self, folder: Path) -> list[WeightFile]:
        return [WeightFile(folder / name, prefix) for prefix, name in self.weights]

    def config_files(self, folder: Path) -> list[str]:
        return self.published_layout.config_files(folder)

    def tokenizer_files(self, folder: Path) -> list[str]:
        return self.published_layout.tokenizer_files(folder)

    def check_tokenizer(self, folder: Path, config: Config | None) -> None:
        self.published_layout.check_tokenizer(folder, config)

    def voice_files(self, folder: Path) -> list[str]:
        return self.published_layout.voice_files(folder)

    def voice(self, path: Path, config: Config) -> torch.Tensor:
        return self.published_layout.voice(path, config)

    def voice_names(self, config: Config) -> list[str]:
        return self.published_layout.voice_names(config)

    @cached_property
    def _names(self) -> Renames:
        return Renames(self.renames)

    def name(self, published: str) -> str:
        """mlx-audio's name of a tensor."""
        return self._names.other(published)

    def published(self, name: str) -> str:
        """The published name of a tensor of mlx-audio, and of a published name itself."""
        return self._names.published(name)

    def is_reordered(self, published: str) -> bool:
        return published.startswith(self.reordered) if self.reordered else False

    def takes_integers(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.integers)


def section_of(content: Json, name: str, source: str) -> Json:
    """A part of the content of `source`; empty if it is missing. Raises CheckpointError."""
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{source}: {name}: holds a {type(found).__name__}, expected an object; {CONVERT_AGAIN}"
        )
    return dict(found)


def without_integers(content: Json) -> Json:
    """The content of `config.json` for floats."""
    return {key: value for key, value in content.items() if key not in (QUANTIZATION, QUANTIZATION_CONFIG)}


def read_mlx_config(folder: Path) -> Json:
    """The contents of `config.json`; empty without one. Raises IntegrityError."""
    path = folder / CONFIG
    content = read_json(folder, CONFIG) if path.is_file() else {}
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, expected an object")
    return content


def quantization_of(folder: Path) -> Json:
    """`quantization` of `config.json`; empty without one. Raises CheckpointError."""
    content = read_mlx_config(folder)
    keys = (key for key in (QUANTIZATION, QUANTIZATION_CONFIG) if content.get(key) is not None)
    found = content.get(next(keys, ""), {})
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{folder / CONFIG}: {QUANTIZATION}: holds a {type(found).__name__}, expected an object; "
            f"{CONVERT_AGAIN}"
        )
    return found


def config_faults(folder: Path, mlx: MlxLayout[Config], packed: Packed) -> list[str]:
    """What `config.json` says otherwise; empty without one. Raises CheckpointError.

    `packed` are the packed layers, by the paths in the file of weights. A key that only one side has is no
    fault: mlx-audio has defaults.
    """
    path, content = folder / CONFIG, read_mlx_config(folder)
    if not path.is_file() or not mlx.model_type:
        return []
    faults = []
    kind = content.get(MODEL_TYPE)
    if kind != mlx.model_type:
        faults.append(f"{path}: {MODEL_TYPE}: {kind!r}, expected {mlx.model_type!r}; {CONVERT_AGAIN}")
    faults += [f"{path}: {fault}; {CONVERT_AGAIN}" for fault in _quantization_faults(folder, packed)]
    published = mlx.published_config
    if published and (folder / published).is_file():
        own = {name: value for name, value in content.items() if name not in OWN_KEYS}
        difference = _differing_value(own, mlx.mlx_config(folder))
        if difference:
            key, found, expected = difference
            faults.append(
                f"{path}: {key}: {found!r}, expected {expected!r} as in {published}; {CONVERT_AGAIN}"
            )
    return faults


def _differing_value(
    found: JsonValue, expected: JsonValue, key: str = ""
) -> tuple[str, JsonValue, JsonValue] | None:
    """Key and both values of the first difference, among the keys that both have."""
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        return None if found == expected else (key, found, expected)
    for name in (name for name in expected if name in found):
        difference = _differing_value(found[name], expected[name], f"{key}.{name}".lstrip("."))
        if difference:
            return difference
    return None


def _quantization_faults(folder: Path, packed: Packed) -> Iterator[str]:
    content = quantization_of(folder)
    if not content and packed:
        yield f"{QUANTIZATION}: missing, and {len(packed)} layers are packed, such as {min(packed)}"
        return
    default = {key: content.get(key, value) for key, value in DEFAULT.items()}
    for path, packing in sorted(packed.items()):
        entry = content.get(path, True)
        if isinstance(entry, dict):  # its own mode decides what it leaves out, not the entry for all layers
            usual = PACKINGS.get(str(entry.get("mode")), PACKINGS["affine"]).to_entry()
            entry = {key: entry.get(key, value) for key, value in usual.items()}
        found = default if entry is True else entry
        if found != packing.to_entry():
            yield f"{QUANTIZATION}.{path}: {_text(found)}, expected {packing} as the file of weights has"
    for path, entry in content.items():
        if path not in DEFAULT and path not in packed and entry is not False:
            yield f"{QUANTIZATION}.{path}: {_text(entry)}, and the layer is not packed"
    if content and not packed:
        yield f"{QUANTIZATION}: there, and no layer is packed"


def _text(entry: object) -> str:
    """A few words for an entry."""
    if isinstance(entry, dict):
        mode = entry.get("mode") or "affine"
        named = "" if mode == "affine" else f" ({mode})"
        return f"{entry.get('bits')} bits in groups of {entry.get('group_size')}{named}"
    return repr(entry)
