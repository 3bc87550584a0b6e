"""`manifest.json`: what a bundle was made from, what it holds, and how it was verified. See FORMAT.md."""

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.files import check_utf8
from voxport.bundle.folder import check_links, check_unlisted, could_be_read, is_plain_path, unlisted
from voxport.bundle.json_types import Json, check_printable, unknown_keys, without_duplicates
from voxport.bundle.names import did_you_mean
from voxport.bundle.spec import Signature, Size, StateSpec

SCHEMA_VERSION: Literal[3] = 3
MANIFEST, README, REPORT, VECTORS = "manifest.json", "README.md", "verify.json", "vectors.json"
UNLISTED = (README, REPORT, VECTORS)  # files about the bundle, which no engine reads
VOICE_KEY = "embedding"  # the only tensor in a voice file, float32 [N, dim]
NOT_RUN = "not run"  # `Manifest.executed_by` if nothing has executed the artifacts
MAX_MANIFEST_BYTES = 2**24  # the published models have 0.1 MB
Precision = Literal["float16", "float32"]
log = logging.getLogger(__name__)


def _check_relative(path: str) -> str:
    if not is_plain_path(path):
        raise ValueError(f"{path[:100]!r} is not a plain path inside the bundle")
    return path


RelativePath = Annotated[str, AfterValidator(_check_relative)]


class Record(BaseModel):
    """Immutable; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ManifestRecord(Record):
    """Part of a manifest. An unknown key is ignored, because a newer version may add some."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class FamilyConstants(ManifestRecord):
    """Numbers that a family's runner needs besides names and shapes; `bundle.constants` has the records."""


class FileEntry(ManifestRecord):
    """Size in bytes and SHA-256 of a file."""

    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class SchemeEntry(ManifestRecord):
    """How a weight is stored: the `type` of a scheme and its parameters. `quantize` defines the types."""

    model_config = ConfigDict(frozen=True, extra="allow")
    type: str
    __pydantic_extra__: dict[str, int | float | str | bool | None]


class RuleEntry(ManifestRecord):
    """Schemes for the module paths that match a shell pattern; null keeps floats."""

    pattern: str
    linears: SchemeEntry | None
    tables: SchemeEntry | None


class RecipeEntry(ManifestRecord):
    """The recipe of one graph: the first rule that matches a module path, otherwise `linears` or `tables`."""

    name: str
    linears: SchemeEntry | None
    tables: SchemeEntry | None
    rules: tuple[RuleEntry, ...]


NO_LICENCE_NEEDED = "none needed: random weights"  # licence of the weights that voxport makes


class SourceEntry(ManifestRecord):
    """A checkpoint: its name, its files by hash, and if it is of a hub, OWNER/NAME@COMMIT as `origin`."""

    name: str
    origin: str | None = None
    files: dict[str, FileEntry]


class ExportRequest(ManifestRecord):
    """The options of an export as given. Resolving them again against the same checkpoint gives the same job.

    `quant_for` maps components to recipes, `rules` are `PATTERN=RECIPE`, `options` are the family's options.
    """

    quant: str = "none"
    quant_for: tuple[tuple[str, str], ...] = ()
    rules: tuple[str, ...] = ()
    options: dict[str, JsonValue] = Field(default_factory=dict)
    cache_length: Size | None = None
    calibration: str | None = None


class ComponentEntry(ManifestRecord):
    """How one component is called: `entry_point` of `file`.

    Axis 0 of inputs, outputs and states is 1 in their shapes and may be up to `max_batch`.
    `state_rows_per_call` is the largest number of cache rows that one call of a method for states reads or
    writes (0: no such methods). `bits_per_weight` counts all parameters of the graph; `weight_bytes` are read
    from memory by one call.
    """

    name: str
    graph: str
    purpose: str
    signature: Signature
    file: RelativePath
    entry_point: str
    max_batch: Annotated[int, Field(ge=1, le=2**10)] = 1
    state_rows_per_call: Annotated[int, Field(ge=0, le=2**20)] = 0
    recipe: str
    bits_per_weight: float
    weight_bytes: Annotated[int, Field(ge=0)] = 0


class ExportJob(ManifestRecord):
    """Everything that decides the bytes of a bundle's artifacts, resolved from a request and a checkpoint.

    `constants` are what a runner needs beside shapes; `calibration_data` is the hash of texts or recordings.
    """

    family: str
    source: SourceEntry
    request: ExportRequest
    target: str
    compute_precision: Precision
    options: dict[str, JsonValue]
    constants: dict[str, JsonValue]
    recipes: dict[str, RecipeEntry]
    cache_length: Size
    calibration: str | None = None
    calibration_data: str | None = None
    components: tuple[ComponentEntry, ...]
    licence: str
    languages: tuple[str, ...]  # codes of ISO 639
    tools: dict[str, str]

    @model_validator(mode="after")
    def _graphs_own_their_states(self) -> Self:
        """Components of one graph have the same states, and no others have states of these names."""
        states: dict[str, tuple[StateSpec, ...]] = {}
        owners: dict[str, str] = {}
        for component in self.components:
            graph, own = component.graph, component.signature.states
            if states.setdefault(graph, own) != own:
                raise ValueError(f"{component.name[:50]}: its states differ from those of graph {graph[:50]}")
            for state in own:
                if owners.setdefault(state.name, graph) != graph:
                    raise ValueError(f"state {state.name[:50]}: two graphs have it, expected one")
        return self


class WeightError(ManifestRecord):
    """Relative error |w - w'| / |w| of one graph's quantised weights, for searched and min-max scales."""

    searched: float
    min_max: float


class Verification(ManifestRecord):
    """Result of the checks; `verify.json` has the same form. `reports` are measured values without a bar."""

    status: Literal["passed", "failed", "unverified"]
    # rows are text and numbers with one of two sets of columns, which export.verify.comparison defines
    rows: tuple[Json, ...]
    reports: dict[str, dict[str, float]]


class Manifest(ManifestRecord):
    """All of `manifest.json`."""

    schema_version: Literal[3]
    job: ExportJob
    files: dict[RelativePath, FileEntry]
    tokenizer: tuple[RelativePath, ...]
    voices: dict[str, RelativePath]
    weight_errors: dict[str, WeightError]
    executed_by: str = NOT_RUN
    verification: Verification = Verification(status="unverified", rows=(), reports={})


class Bundle:
    """A folder with a manifest.

    Opening it checks that every file exists with its size. `check_hashes` reads all files.
    """

    def __init__(self, folder: Path | str, manifest: Manifest | None = None):
        """`manifest` is used instead of the one in the folder. Raises UsageError or IntegrityError."""
        self.folder = Path(folder)
        check_utf8(self.folder)
        self.manifest = manifest or read_manifest(self.folder)
        self._check_files()

    @property
    def job(self) -> ExportJob:
        return self.manifest.job

    @property
    def components(self) -> tuple[ComponentEntry, ...]:
        return self.manifest.job.components

    @property
    def size(self) -> int:
        """Bytes of all files listed in the manifest."""
        return sum(entry.size for entry in self.manifest.files.values())

    @property
    def is_verified(self) -> bool:
        return self.manifest.verification.status == "passed"

    @property
    def engine_files(self) -> dict[str, FileEntry]:
        """What is checked: all but the README, which is for people."""
        return {name: entry for name, entry in self.manifest.files.items() if name not in UNLISTED}

    def component(self, name: str) -> ComponentEntry:
        return next(entry for entry in self.components if entry.name == name)

    def check_hashes(self) -> None:
        """Raises IntegrityError that names the first file whose bytes differ from the exported ones, or that
        an engine could read and the manifest does not list.
        """
        self.check_unlisted()
        for name, entry in self.engine_files.items():
            if file_entry(self.folder / name) != entry:
                raise IntegrityError(
                    f"{self.folder / name}: its bytes differ from the manifest's hash; "
                    "fetch or export the bundle again"
                )

    def _check_files(self) -> None:
        """Every file of the manifest exists with its size, and every file that it uses is one of them."""
        for name, entry in self.engine_files.items():
            path = self.folder / name
            if not path.is_file():
                raise IntegrityError(f"{path}: missing, but the manifest lists it; export the bundle again")
            if not os.access(path, os.R_OK):
                raise UsageError(f"{path}: cannot be read: permission denied")
            if (size := path.stat().st_size) != entry.size:
                raise IntegrityError(f"{path}: {size} bytes, expected {entry.size}; export the bundle again")
        check_links(self.folder)
        artifacts = (entry.file for entry in self.components)
        for name in (*self.manifest.voices.values(), *artifacts, *self.manifest.tokenizer):
            if not any(file == name or file.startswith(f"{name}/") for file in self.manifest.files):
                raise IntegrityError(
                    f"{self.folder / MANIFEST}: {name} is used but is not among the files; "
                    "export the bundle again"
                )

    def check_unlisted(self) -> None:
        """Raises IntegrityError on a file that the manifest does not list and that an engine could read."""
        check_unlisted(self.folder, self._listed, UNLISTED)

    def remarks(self) -> list[str]:
        """What differs from the exported bundle without changing what runs: files for people."""
        found, readme = [], self.manifest.files.get(README)
        if readme and not (self.folder / README).is_file():
            found.append(f"{README} is missing")
        elif readme and file_entry(self.folder / README) != readme:
            found.append(f"{README} was changed after the export")
        for name in unlisted(self.folder, self._listed):
            reason = "no command runs it with this file" if could_be_read(name) else "nothing reads it"
            found.append(f"{name} is not part of the bundle; {reason}")
        return found

    @property
    def _listed(self) -> set[str]:
        return {MANIFEST, *UNLISTED, *self.manifest.files}


def read_manifest(folder: Path) -> Manifest:
    """Raises UsageError without a manifest, IntegrityError if it is damaged or of another schema version."""
    path = folder / MANIFEST
    if folder.is_file():
        raise UsageError(f"{folder}: is a file, expected the folder of a bundle")
    if not path.is_file():
        found = [*folder.glob(f"*/{MANIFEST}"), *folder.glob(f"snapshots/*/{MANIFEST}")]
        names = ", ".join(sorted(str(each.parent.relative_to(folder)) for each in found))
        beside = [each.parent.name for each in folder.parent.glob(f"*/{MANIFEST}")]
        close = "" if folder.exists() else did_you_mean(folder.name, beside)
        advice = f"give one of the bundles in it: {names}" if names else f"export one first{close}"
        reason = f"it has no {MANIFEST}" if folder.exists() else "there is no such folder"
        raise UsageError(f"{folder} is not a bundle: {reason}; {advice}")
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise IntegrityError(
            f"{path}: {path.stat().st_size} bytes, expected at most {MAX_MANIFEST_BYTES}; "
            "export the bundle again"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_duplicates)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # ValueError also: a number of 5,000 digits
        raise IntegrityError(f"{path}: not JSON ({error}); export the bundle again") from None
    check_printable(path, content)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(version, bool | float):  # True equals 1 in Python, and 2.0 equals 2
        raise IntegrityError(f"{path}: schema_version is {version}, expected {SCHEMA_VERSION}")
    if isinstance(version, int) and version != SCHEMA_VERSION:
        is_newer = version > SCHEMA_VERSION
        advice = "update voxport" if is_newer else f"make it again: {_export_command(content)}"
        raise IntegrityError(
            f"{path}: schema version {version}, this version reads {SCHEMA_VERSION}; {advice}"
        )
    try:
        manifest = Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise IntegrityError(f"{path}: {first_fault(error)}; export the bundle again") from None
    if unknown := unknown_keys(content, manifest.model_dump(mode="json")):
        log.info("%s: %s: ignored; a newer version of voxport knows it", path, ", ".join(unknown))
    return manifest


def _export_command(content: Json) -> str:
    """The command that makes a bundle of an older version again."""
    match content.get("job"):
        case {"target": str(target), "request": {"quant": str(quant)}}:
            return f"voxport export --checkpoint FOLDER --target {target} --quant {quant}"
    return "voxport export"


def file_entry(path: Path) -> FileEntry:
    """Size and hash of a file, which is read in blocks."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(size=path.stat().st_size, sha256=digest)


def first_fault(error: ValidationError) -> str:
    """`key: what is wrong` for the first error."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg'].removeprefix('Value error, ')}"
