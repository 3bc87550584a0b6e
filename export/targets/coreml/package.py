"""A `.mlpackage` on disk: functions are merged into one package, and what varies from run to run is removed.

Functions are merged blob by blob. The function of coremltools for this holds all weights of all functions in
memory several times (8 bytes for each weight of 4 bits, measured), which does not fit for the published
model.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from voxport.bundle.errors import ExportError
from voxport.bundle.weight_blobs import BLOCK, ENTRY, HEADER, MARK, VERSION
from voxport.export.targets.coreml.tools import ct

CONTENT = "Data/com.apple.CoreML"
MODEL, WEIGHTS = f"{CONTENT}/model.mlmodel", f"{CONTENT}/weights/weight.bin"
METADATA = "com.github.apple.coremltools."
# Any in this module: protobuf messages, whose classes coremltools generates without types.


def merge(parts: dict[str, Path], default: str, path: Path) -> None:
    """Writes the package `path` with one function from each of `parts`, under its key. Equal weights are
    stored once.

    Each part has one function. `default` names the default function. Raises ExportError if a weight file is
    damaged.
    """
    shutil.copytree(next(iter(parts.values())), path)
    merged = ct.proto.Model_pb2.Model()
    with (path / WEIGHTS).open("wb") as file:
        writer = _WeightWriter(file)
        for name, part in parts.items():
            spec = ct.utils.load_spec(str(part / MODEL))
            (function,) = spec.mlProgram.functions.values()
            writer.move(function, part / WEIGHTS)
            merged.specificationVersion = max(merged.specificationVersion, spec.specificationVersion)
            merged.mlProgram.version = spec.mlProgram.version
            merged.mlProgram.functions[name].CopyFrom(function)
            described = spec.description
            merged.description.functions.add(
                name=name, input=described.input, output=described.output, state=described.state
            )
        writer.write_header()
    merged.description.defaultFunctionName = default
    (path / MODEL).write_bytes(merged.SerializeToString(deterministic=True))


class _WeightWriter:
    """Writes a weight file blob by blob, equal blobs once. `bundle.weight_blobs` defines the layout."""

    def __init__(self, file: BinaryIO):
        self._file, self._places = file, dict[bytes, int]()
        file.write(bytes(BLOCK))

    def write_header(self) -> None:
        self._file.seek(0)
        self._file.write(HEADER.pack(len(self._places), VERSION))

    def move(self, message: Any, source: Path) -> None:
        """Copies the blobs of the file `source` that a function refers to, and changes its references to this
        file.
        """
        with source.open("rb") as file:
            for value in blob_values(message):
                value.offset = self._place(file, value.offset)

    def _place(self, file: BinaryIO, offset: int) -> int:
        file.seek(offset)
        mark, kind, size, start, padding = ENTRY.unpack(file.read(ENTRY.size))
        if mark != MARK:
            raise ExportError(f"weight file: no blob at {offset}")
        file.seek(start)
        data = file.read(size)
        # BLAKE2 is three times as fast as SHA-256 on a processor without instructions for it
        key = hashlib.blake2b(data).digest() + bytes([kind, padding])
        if key not in self._places:
            self._file.write(bytes(-self._file.tell() % BLOCK))
            place = self._places[key] = self._file.tell()
            self._file.write(ENTRY.pack(mark, kind, size, place + BLOCK, padding).ljust(BLOCK, b"\0"))
            self._file.write(data)
        return self._places[key]


def blob_values(message: Any) -> Iterator[Any]:
    """All references to a weight file below a protobuf message, in an order that depends on the message only.

    The order of keys in a protobuf map differs from process to process.
    """
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.name == "BlobFileValue":
            yield value
            continue
        if not field.message_type.GetOptions().map_entry:
            parts = value if isinstance(value, Sequence) else [value]
        elif field.message_type.fields_by_name["value"].message_type:
            parts = [value[key] for key in sorted(value)]
        else:
            continue
        for part in parts:
            yield from blob_values(part)


def normalise(path: Path) -> None:
    """Removes dates and random identifiers, so that equal models have equal bytes, and sets the usual file
    modes.

    coremltools writes files that only their owner can read.
    """
    (path / "executorch_debug_handle_mapping.json").unlink(missing_ok=True)
    spec = ct.utils.load_spec(str(path / MODEL))
    for key in [key for key in spec.description.metadata.userDefined if key.startswith(METADATA)]:
        del spec.description.metadata.userDefined[key]
    (path / MODEL).write_bytes(spec.SerializeToString(deterministic=True))
    manifest = json.loads((path / "Manifest.json").read_text())
    names = {old: _identifier(entry["path"]) for old, entry in manifest["itemInfoEntries"].items()}
    manifest["itemInfoEntries"] = {names[old]: entry for old, entry in manifest["itemInfoEntries"].items()}
    manifest["rootModelIdentifier"] = names[manifest["rootModelIdentifier"]]
    # coremltools rewrites this file with these spaces whenever it opens the package
    (path / "Manifest.json").write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n")

    mask = os.umask(0)
    os.umask(mask)
    for part in path.rglob("*"):
        part.chmod((0o777 if part.is_dir() else 0o666) & ~mask)


def _identifier(path: str) -> str:
    """A UUID that depends on the path of the item only."""
    digest = hashlib.sha256(path.encode()).hexdigest().upper()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))
