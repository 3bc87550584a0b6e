"""Inspects a checkpoint: whether it is loadable, every problem with what to do, and what it holds."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TypedDict

from pydantic import BaseModel, JsonValue

from voxport.bundle.errors import CheckpointError, ConfigError, IntegrityError
from voxport.model.checkpoint import Checkpoint, Shapes, expected_tensors
from voxport.model.config import Config
from voxport.model.download import partial_downloads
from voxport.model.families import layout_of, open_family
from voxport.model.family import Family
from voxport.model.foreign import foreign_format_named
from voxport.model.graph import Options, Weights
from voxport.model.mlx.layout import MLX_WEIGHTS
from voxport.model.other_weights import check_other_weights

MAX_NAMED = 3  # tensors of a kind that a note names


class Contents(TypedDict, total=False):
    """What the files of a checkpoint hold, as far as they are readable. All values are JSON values."""

    family: str
    languages: list[str]
    tokenizer: bool
    config: dict[str, JsonValue]
    summary: dict[str, str]
    tensors: int
    bytes: int
    dtypes: list[str]
    licence: str
    parameters: dict[str, int]
    voices: dict[str, int]


class Inspection(Contents):
    """The result of `inspect_checkpoint`."""

    loadable: bool | None  # None: not known, without torch
    problems: list[str]
    notes: list[str]


def inspect_checkpoint(
    folder: Path, weights: Collection[str] = (), adapter: Path | None = None
) -> Inspection:
    """Contents of a checkpoint as JSON values, after the checks of an export. Reads values of weights only to
    compare two sets of them. `weights` are names of files to read in place of the usual ones. `adapter` is
    the folder of an adapter to merge.

    `loadable`, `problems` and `notes` are always there. The other keys are there as far as the files allow.
    Raises UsageError if `folder` is not a checkpoint.
    """
    problems: list[str] = []
    faults: list[str] = []
    notes: list[str] = []
    found: Contents = {}
    with collected(problems), foreign_format_named(folder):
        with collected(faults):
            family = open_family_of(folder, weights, adapter)
            found = {"family": family.name, "languages": list(family.languages)}
            found |= _contents(family, folder, faults, notes)
        if faults:
            raise CheckpointError(*dict.fromkeys(faults))  # a damaged index is found wherever it is read
    if problems:
        notes += [f"{path}: a download that has not ended" for path in partial_downloads(folder)]
    return {"loadable": not problems, "problems": problems, "notes": notes, **found}


def open_family_of(
    folder: Path, weights: Collection[str] = (), adapter: Path | None = None, takes_mlx: bool = False
) -> Family:
    """The family of a checkpoint, in the layout that `layout_of` finds, and with its errors."""
    key, layout = layout_of(folder, weights, adapter, takes_mlx)
    return open_family(key).reading(layout)


def check_parts(
    folder: Path,
    family: Family,
    config: BaseModel | None,
    checkpoint: Checkpoint | None,
    notes: list[str],
) -> list[str]:
    """Faults of all parts but the configuration and the files of weights, which are None if they have faults.
    Adds to `notes`. Raises UsageError on two sets of weights.
    """
    faults: list[str] = []
    if checkpoint and checkpoint.adapter:
        notes.append(str(checkpoint.adapter))
    with collected(faults):
        notes += check_other_weights(folder, family.layout, family.mlx.published)
        family.layout.check_tokenizer(folder, config)
    if config:
        with collected(faults):
            family.layout.voices(folder, config)
    if config and checkpoint:
        wrong: list[str] = []
        with collected(wrong):
            family.open_root(config, checkpoint)
        if wrong:
            from voxport.model.stored_weights import is_for_mlx  # only faulty weights need it

            wrong = [f"{folder}: {MLX_WEIGHTS}"] if is_for_mlx(folder, family, config) else wrong
        faults += wrong
    return faults


def _contents(family: Family, folder: Path, problems: list[str], notes: list[str]) -> Contents:
    config = checkpoint = None
    layout = family.layout
    with collected(problems):
        config = layout.load_config(folder)
    with collected(problems):
        checkpoint = family.open_checkpoint(folder)
    found: Contents = {"tokenizer": bool(layout.tokenizer_files(folder))}
    if config:
        found |= {"config": config.model_dump(mode="json"), "summary": dict(family.summary(config))}
        if languages := family.languages_of(folder, config):
            found["languages"] = list(languages)
        else:
            notes.append("languages: the checkpoint names none; the languages of the family count")
    problems += check_parts(folder, family, config, checkpoint, notes)
    if layout.has_tokenizer and not found["tokenizer"]:
        notes.append("no tokenizer: a bundle can neither read nor write text; fetch its file")
    if config and checkpoint:
        found |= {"bytes": checkpoint.size, "licence": family.licence_of(folder, checkpoint, config)}
        for use, names in family.unused_tensors(checkpoint, config).items():
            notes.append(f"unused: {_named(names)}; for {use}")
        with collected(problems):
            found |= _weights(family, config, checkpoint)
    if config and layout.has_voices and not problems:
        found["voices"] = {name: len(rows) for name, rows in layout.voices(folder, config).items()}
        if absent := sorted(set(layout.voice_names(config)) - found["voices"].keys()):
            notes.append(f"voices without a file: {', '.join(absent)}; fetch them if you need them")
    return found


def _weights(family: Family[Weights, Config, Options], config: Config, checkpoint: Checkpoint) -> Contents:
    shapes = expected_tensors(family.build_root(config))
    present = checkpoint.names & shapes.keys()
    return {
        "tensors": len(shapes),
        "parameters": _parameters(shapes, family.parameter_groups),
        "dtypes": sorted({checkpoint.dtype(name) for name in present}),
    }


def _parameters(shapes: Shapes, groups: Mapping[str, str]) -> dict[str, int]:
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
