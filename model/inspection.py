"""Inspects a checkpoint: whether it is loadable, every problem with what to do, and what it holds."""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TypedDict

from pydantic import JsonValue

from voxport.bundle.errors import CheckpointError, ConfigError, IntegrityError
from voxport.model.checkpoint import Checkpoint, Shapes, expected_tensors
from voxport.model.checkpoint_format import Config
from voxport.model.download import partial_downloads
from voxport.model.families import family_of, open_family
from voxport.model.family import Family
from voxport.model.foreign import adapter, foreign_format_named
from voxport.model.mlx.files import is_mlx_folder
from voxport.model.mlx.model import MLX_WEIGHTS, QUANTIZATION, read_mlx_config
from voxport.model.other_weights import check_other_weights
from voxport.model.stored_weights import BIASES, BYTES, SCALES, WEIGHT, StoredWeights, is_for_mlx

PUBLISHED = "published"
MAX_NAMED = 3  # tensors of a kind that a note names


class Integers(TypedDict, total=False):
    """Bits and group of MLX integers. Other tensors have neither key."""

    bits: int
    group: int | None


class TensorRow(Integers):
    """A tensor in a file: its name there and the published one. `layout` is `same` where PyTorch and MLX
    store it alike.
    """

    name: str
    published: str
    layout: str
    dtype: str
    shape: list[int]
    bytes: int


class DtypeTotal(TypedDict):
    """The number of tensors of a dtype, and their bytes."""

    tensors: int
    bytes: int


class Contents(TypedDict, total=False):
    """What the files of a checkpoint hold, as far as they are readable. All values are JSON values."""

    family: str
    languages: list[str]
    tokenizer: bool
    config: dict[str, JsonValue]
    summary: dict[str, str]
    layout: str
    layout_details: list[str]
    tensors: int
    bytes: int
    dtypes: list[str]
    dtype_totals: dict[str, DtypeTotal]
    layouts: list[TensorRow]
    licence: str
    parameters: dict[str, int]
    voices: dict[str, int]


class Inspection(Contents):
    """The result of `inspect_checkpoint`."""

    loadable: bool
    problems: list[str]
    notes: list[str]


def inspect_checkpoint(folder: Path, weights: Collection[str] = ()) -> Inspection:
    """Contents of a checkpoint as JSON values, after the checks of an export. Reads values of weights only to
    compare two sets of them. `weights` are names of files to read in place of the usual ones.

    `loadable`, `problems` and `notes` are always there. The other keys are there as far as the files allow.
    `loadable` is for an export; a folder of mlx-audio is converted first. `layout` is that of the weights,
    `layouts` that of every tensor.
    Raises UsageError if `folder` is not a checkpoint.
    """
    problems: list[str] = []
    faults: list[str] = []
    notes: list[str] = []
    found: Contents = {}
    with collected(problems), foreign_format_named(folder):
        with collected(faults):
            family = open_family_of(folder, weights)
            found = {"family": family.name, "languages": list(family.languages)}
            found |= _contents(family, folder, faults, notes)
        if faults:
            raise CheckpointError(*dict.fromkeys(faults))  # a damaged index is found wherever it is read
    if problems:
        notes += [f"{path}: a download that has not ended" for path in partial_downloads(folder)]
    is_loadable = not problems and found.get("layout", PUBLISHED) == PUBLISHED
    return {"loadable": is_loadable, "problems": problems, "notes": notes, **found}


def open_family_of(folder: Path, weights: Collection[str] = ()) -> Family:
    """The family of a checkpoint, which reads the files `weights` if any are named.

    Raises CheckpointError on an adapter beside weights that are not named.
    """
    family = open_family(family_of(folder))
    if weights:
        return replace(family, format=family.format.choosing(folder, weights))
    if found := adapter(folder):
        raise CheckpointError(f"{folder}: {found}")
    return family


def check_parts(
    folder: Path, family: Family, config: Config | None, checkpoint: Checkpoint | None, notes: list[str]
) -> list[str]:
    """Faults of all parts but the configuration and the files of weights, which are None if they have faults.
    Adds to `notes`. Raises UsageError on two sets of weights.
    """
    faults: list[str] = []
    with collected(faults):
        notes += check_other_weights(folder, family)
        family.format.check_tokenizer(folder, config)
    if config:
        with collected(faults):
            family.format.voices(folder, config)
    if config and checkpoint:
        wrong: list[str] = []
        with collected(wrong):
            family.open_root(config, checkpoint)
        faults += [f"{folder}: {MLX_WEIGHTS}"] if wrong and is_for_mlx(folder, family, config) else wrong
    return faults


def _contents(family: Family, folder: Path, problems: list[str], notes: list[str]) -> Contents:
    config = checkpoint = None
    with collected(problems):
        config = family.config_of(folder)
    found: Contents = {"tokenizer": bool(family.format.tokenizer_files(folder))}
    if config:
        found |= {"config": config.model_dump(mode="json"), "summary": dict(family.summary(config))}
        if languages := family.languages_of(folder, config):
            found["languages"] = list(languages)
        else:
            notes.append("languages: the checkpoint names none; the languages of the family count")
    stored = _stored(family, folder, config, problems) if config else None
    if stored:
        found |= _described(stored)
        if stored.computed:
            notes.append(f"not needed: {_named(stored.computed)}; a model computes them")
    if stored and found["layout"] != PUBLISHED:
        found["licence"] = family.licence_of(stored, config)
    elif not is_mlx_folder(folder, family):
        with collected(problems):
            checkpoint = family.open_checkpoint(folder)
    problems += check_parts(folder, family, config, checkpoint, notes)
    if family.format.has_tokenizer and not found["tokenizer"]:
        notes.append("no tokenizer: a bundle can neither read nor write text; fetch its file")
    if config and checkpoint:
        found |= {"bytes": checkpoint.size, "licence": family.licence_of(checkpoint, config)}
        for use, names in family.unused_tensors(checkpoint, config).items():
            notes.append(f"unused: {_named(names)}; for {use}")
        with collected(problems):
            found |= _weights(family, config, checkpoint)
    if config and family.format.has_voices and not problems:
        found["voices"] = {name: len(rows) for name, rows in family.format.voices(folder, config).items()}
        if absent := sorted(set(family.format.voice_names(config)) - found["voices"].keys()):
            notes.append(f"voices without a file: {', '.join(absent)}; fetch them if you need them")
    return found


def _stored(family: Family, folder: Path, config: Config, problems: list[str]) -> StoredWeights | None:
    """The weights in any layout. None where they have a fault, which is added to `problems` if they are those
    of mlx-audio; the others are checked as a published checkpoint.
    """
    faults: list[str] = []
    with collected(faults):
        return StoredWeights(folder, family, config)
    has_one_config = family.mlx.published_config is None
    if is_mlx_folder(folder, family) or (has_one_config and read_mlx_config(folder).get(QUANTIZATION)):
        problems += faults
    return None


def _described(stored: StoredWeights) -> Contents:
    """The layout of the folder and of every tensor, and what each dtype takes."""
    rows = [row for name in sorted(stored.tensors) for row in _tensor_rows(stored, name)]
    kinds = sorted({row["dtype"] for row in rows})
    totals = {kind: [row["bytes"] for row in rows if row["dtype"] == kind] for kind in kinds}
    tensors = stored.tensors.values()
    convolutions = Counter(found.layout for found in tensors if found.stored.order)
    details = [f"{count} convolutions of {layout}" for layout, count in sorted(convolutions.items())]
    if stored.folded:
        details.append(f"{len(stored.folded)} folded weight norms")
    if packed := sum(found.bits is not None for found in tensors):
        details.append(f"{packed} layers of integers")
    return {
        "layout": stored.layout,
        "layout_details": details,
        "tensors": len(rows),
        "bytes": sum(file.path.stat().st_size for file in stored.files),
        "dtypes": kinds,
        "dtype_totals": {
            kind: {"tensors": len(sizes), "bytes": sum(sizes)} for kind, sizes in totals.items()
        },
        "layouts": rows,
    }


def _tensor_rows(stored: StoredWeights, name: str) -> list[TensorRow]:
    """The tensor in the file that has the published name, and its scales and biases."""
    found = stored.tensors[name]
    layout = "same" if found.stored.is_same_in_both else found.layout
    if not found.bits:
        return [_tensor_row(stored, found.name, name, layout, {})]
    path = found.name.removesuffix(WEIGHT)
    return [
        _tensor_row(stored, found.name, name, layout, {"bits": found.bits, "group": found.group}),
        *(_tensor_row(stored, path + end, name, "same", {}) for end in (SCALES, BIASES)),
    ]


def _tensor_row(
    stored: StoredWeights, name: str, published: str, layout: str, integers: Integers
) -> TensorRow:
    dtype, shape = stored.entry(name)
    return {
        "name": name,
        "published": published,
        "layout": layout,
        **integers,
        "dtype": dtype,
        "shape": list(shape),
        "bytes": BYTES[dtype] * prod(shape),
    }


def _weights(family: Family, config: Config, checkpoint: Checkpoint) -> Contents:
    shapes = expected_tensors(family.build_root(config))
    present = checkpoint.names & shapes.keys()
    return {
        "tensors": len(shapes),
        "parameters": _parameters(shapes, family.parameter_groups),
        "dtypes": sorted({checkpoint.dtype(name) for name in present}),
    }


def _parameters(shapes: Shapes, groups: dict[str, str]) -> dict[str, int]:
    """Number of parameters of each group. Raises ConfigError on a tensor of no group."""
    counts = dict.fromkeys(groups.values(), 0)
    for name, shape in shapes.items():
        group = next((group for prefix, group in groups.items() if name.startswith(prefix)), None)
        if group is None:
            raise ConfigError(f"parameter_groups has no prefix of {name}; add one to the family")
        counts[group] += prod(shape)
    return counts


@contextmanager
def collected(faults: list[str]) -> Iterator[None]:
    """Adds the faults of an IntegrityError to `faults`."""
    try:
        yield
    except IntegrityError as error:
        faults += error.faults


def _named(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
