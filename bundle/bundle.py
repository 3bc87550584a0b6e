"""The bundle: a folder with a manifest, and the only thing between export and runtime. The format is in BUNDLE.md."""

from __future__ import annotations

import hashlib
import json
from math import prod
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bundle.errors import IntegrityError, UsageError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
LARGEST_STATE = 2**32  # values; a cache of the published model has 2 million to 134 million
LONGEST_PATH = 200  # bytes; every system takes that


def _inside(path: str) -> str:
    plain = path.isprintable() and len(path.encode()) <= LONGEST_PATH and not {"\\", ":"} & set(path)
    if (
        not plain
        or not path
        or path.startswith("/")
        or ".." in PurePosixPath(path).parts
        or str(PurePosixPath(path)) != path
    ):
        raise ValueError(f"{path[:100]!r} is not a plain path inside the bundle")
    return path


RelativePath = Annotated[str, AfterValidator(_inside)]
Dimension = Annotated[int, Field(ge=0)] | str
Size = Annotated[int, Field(ge=1, le=2**40)]
Bounds = tuple[Size, Size]
Target = Literal["onnx", "executorch", "coreml"]
Dtype = Literal["float32", "float16", "int64", "int32"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tensor(_Record):
    """One input or output; a named dimension has its bounds in `ComponentEntry.dims`, `1920*T` is a multiple of one."""

    name: str
    dtype: Dtype
    shape: tuple[Dimension, ...]
    kind: str


class State(_Record):
    """What an entry point carries from call to call; entries of one graph share states of one name.

    A position takes `stride` rows of a cache. One with a `window` rolls: its rows are the last of a stream without end, of which a
    query sees so many, and beyond which a call writes `at_once` rows at most.
    """

    name: str
    dtype: Dtype
    shape: tuple[Size, ...]
    is_cache: bool
    window: Annotated[int, Field(ge=1, le=2**24)] | None = None
    stride: Annotated[int, Field(ge=1, le=2**10)] = 1
    at_once: Annotated[int, Field(ge=1, le=2**20)] = 1

    @model_validator(mode="after")
    def _has_a_sane_size(self) -> State:
        if prod(self.shape) > LARGEST_STATE:
            raise ValueError(
                f"state {self.name[:50]} of {prod(self.shape)} values, expected at most {LARGEST_STATE}"
            )
        return self


class ComponentEntry(_Record):
    """How one component is called: `entry_point` of `file`. Axis 0 of its inputs, outputs and states, 1 in their shapes, may
    be as many streams as `most_streams`. `rows_moved`: of its caches, by one call of a method that moves states."""

    name: str
    graph: str
    file: RelativePath
    entry_point: str
    purpose: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    states: tuple[State, ...]
    dims: dict[str, Bounds]
    most_streams: Annotated[int, Field(ge=1, le=2**10)] = 1
    rows_moved: Annotated[int, Field(ge=0, le=2**20)] = 0
    recipe: str
    bits_per_weight: float
    weight_bytes: Annotated[int, Field(ge=0)] = 0
    weight_error: float | None = None
    weight_error_min_max: float | None = None

    @model_validator(mode="after")
    def _dimensions_have_bounds(self) -> ComponentEntry:
        for tensor in self.inputs:
            for size in tensor.shape:
                if isinstance(size, str) and size not in self.dims:
                    raise ValueError(f"input {tensor.name} has a size {size!r} without bounds")
        return self


class FileEntry(_Record):
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class SchemeEntry(_Record):
    """How weights are held: symmetric integers, one scale per `group` weights of a row or per row; or with `channels` a palette of
    2^bits values per so many rows."""

    bits: Literal[4, 8]
    group: Size | None
    activations: Literal["kernel", "int8"]
    channels: Size | None


class RuleEntry(_Record):
    """Schemes for the module paths that match a shell pattern; null keeps floats."""

    pattern: str
    linears: SchemeEntry | None
    tables: SchemeEntry | None


class GraphRecipe(_Record):
    """What decided the weights of one graph: the first rule that matches a path, else `linears` and `tables`."""

    name: str
    linears: SchemeEntry | None
    tables: SchemeEntry | None
    rules: tuple[RuleEntry, ...]


class RecipeEntry(_Record):
    """The recipe that was asked for, and what it came to graph by graph."""

    name: str
    graphs: dict[str, GraphRecipe]


class Verification(_Record):
    """What the check before the bundle got its name found; `verify.json` has the same form."""

    status: Literal["passed", "failed", "unverified"]
    rows: tuple[dict[str, Any], ...]
    reports: dict[str, dict[str, float]]


class Source(_Record):
    """The checkpoint that a bundle was made from: its files by hash, never its place."""

    name: str
    files: dict[str, FileEntry]


class Manifest(_Record):
    """All of `manifest.json`."""

    schema_version: Literal[1] = 1
    family: str
    constants: dict[str, Any]
    switches: dict[str, bool | str]
    source: Source
    target: Target
    recipe: RecipeEntry
    cache_length: Size
    compute_precision: Literal["float16", "float32"]
    components: tuple[ComponentEntry, ...]
    files: dict[RelativePath, FileEntry]
    tokenizer: RelativePath | None
    voices: dict[str, RelativePath]
    tools: dict[str, str]
    licence: str
    numerics: str
    verification: Verification


def read_manifest(folder: Path) -> Manifest:
    """Raises UsageError where there is no bundle, IntegrityError where the manifest is broken or newer than this code."""
    path = folder / MANIFEST
    if not path.is_file():
        inside = sorted(found.parent.name for found in folder.glob(f"*/{MANIFEST}"))
        advice = (
            f"give one of the bundles in it: {', '.join(inside)}"
            if inside
            else "make one with python -m export"
        )
        raise UsageError(f"{folder} is no bundle: it has no {MANIFEST}; {advice}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: not UTF-8, not JSON, a number of 5,000 digits
        raise IntegrityError(f"{path}: not JSON ({error}); export the bundle again") from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise IntegrityError(
            f"{path}: schema {version} is newer than this runtime's {SCHEMA_VERSION}; update voxport"
        )
    try:
        return Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise IntegrityError(f"{path}: {first_fault(error)}; export the bundle again") from None


def first_fault(error: ValidationError) -> str:
    """`key: what is wrong` of the first thing that does not fit."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg'].removeprefix('Value error, ')}"


def file_entry(path: Path) -> FileEntry:
    """Size and hash of a file, read in pieces."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(size=path.stat().st_size, sha256=digest)


class Bundle:
    """An opened bundle. Opening checks that every file is there in its size; `check_hashes` reads them all."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        for name, entry in self.manifest.files.items():
            path = self.folder / name
            if not path.is_file() or not path.resolve().is_relative_to(self.folder.resolve()):
                raise IntegrityError(
                    f"{path}: missing, though the manifest lists it; export the bundle again"
                )
            if path.stat().st_size != entry.size:
                raise IntegrityError(
                    f"{path}: {path.stat().st_size} bytes, the manifest says {entry.size}; export the bundle again"
                )
        listed = [
            *self.manifest.voices.values(),
            *(c.file for c in self.manifest.components),
            self.manifest.tokenizer,
        ]
        for name in filter(None, listed):
            if not any(file == name or file.startswith(f"{name}/") for file in self.manifest.files):
                raise IntegrityError(
                    f"{self.folder / MANIFEST}: {name} is used but not among the files; export the bundle again"
                )

    def check_hashes(self) -> None:
        """Raises IntegrityError that names the first file whose bytes are not those that were exported."""
        for name, entry in self.manifest.files.items():
            if file_entry(self.folder / name) != entry:
                raise IntegrityError(
                    f"{self.folder / name}: its bytes differ from the manifest's hash; fetch or export the bundle again"
                )

    def component(self, name: str) -> ComponentEntry:
        return next(entry for entry in self.manifest.components if entry.name == name)

    @property
    def is_verified(self) -> bool:
        return self.manifest.verification.status == "passed"
