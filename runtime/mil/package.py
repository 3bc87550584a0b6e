"""A `.mlpackage` on disk: its parts as the package's own manifest lists them."""

from __future__ import annotations

import json
import sys
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf.message import DecodeError

from runtime.mil.errors import CallError, MilError, PackageError, UnsupportedError
from runtime.mil.program import Function, Reader
from runtime.mil.weights import WeightFile

PROTO = "coreml_protobuf"  # the name under which the classes are imported


class Package:
    """Functions are read when they are asked for. Raises PackageError where the folder is no readable ML program."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self._model = self._root()
        try:
            content = self._model.read_bytes()
        except OSError as error:
            raise PackageError(f"{self._model}: cannot be read: {error.strerror}") from None
        self._spec = _parse(content, self._model)
        self._functions: dict[str, Function] = {}
        self._weights: dict[str, WeightFile] = {}
        self._shared: dict[Any, list[Any]] = {}

    def _root(self) -> Path:
        manifest = self.path / "Manifest.json"
        if not manifest.exists():
            inside = (
                ", ".join(sorted(part.name for part in self.path.glob("*.mlpackage")))
                if self.path.is_dir()
                else ""
            )
            around = next((str(parent) for parent in self.path.parents if parent.suffix == ".mlpackage"), "")
            hint = f", as there are {inside} in it" if inside else f", as {around} is" if around else ""
            raise CallError(f"{self.path}: no package; expected a folder .mlpackage{hint}")
        try:
            content = json.loads(manifest.read_text(encoding="utf-8"))
            place = content["itemInfoEntries"][content["rootModelIdentifier"]]["path"]
        except OSError as error:
            raise PackageError(
                f"{manifest}: cannot be read: {error.strerror}; expected a folder .mlpackage"
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PackageError(f"{manifest}: does not say where the model is") from None
        return self._inside(place, self.path / "Data")

    def _inside(self, place: Any, folder: Path) -> Path:
        if (
            not isinstance(place, str)
            or not place.isprintable()
            or PurePosixPath(place).is_absolute()
            or ".." in PurePosixPath(place).parts
        ):
            raise PackageError(f"{self.path}: {str(place)[:80]!r} is no path inside the package")
        return folder / place

    @cached_property
    def function_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._spec.mlProgram.functions))

    @property
    def specification(self) -> int:
        """Version of the format: 6 to 9 came with iOS 15 to 18."""
        return int(self._spec.specificationVersion)

    @property
    def default_function(self) -> str:
        """What runs where nobody names a function."""
        named = self._spec.description.defaultFunctionName
        return named if named in self.function_names else self.function_names[0]

    def function(self, name: str | None = None) -> Function:
        """Raises CallError that lists those there are, PackageError or UnsupportedError where it cannot be read."""
        name = self.default_function if name is None else name
        if name not in self.function_names:
            raise CallError(f"{self.path}: no function {name!r}; there are {', '.join(self.function_names)}")
        if name not in self._functions:
            try:
                self._functions[name] = Reader(self._spec, self._weight_file, self._shared).function(name)
            except (PackageError, UnsupportedError) as error:
                raise type(error)(f"{self.path}: {error}") from None
            except RecursionError:
                raise PackageError(f"{self.path}: function {name}: its blocks are nested too deep") from None
        return self._functions[name]

    def _weight_file(self, place: str) -> WeightFile:
        if place not in self._weights:
            self._weights[place] = WeightFile(self._inside(place, self._model.parent))
        return self._weights[place]


def _parse(content: bytes, path: Path) -> Any:
    """A specification with an ML program."""
    spec = _messages("Model_pb2").Model()
    try:
        spec.ParseFromString(content)
    except (DecodeError, RecursionError):
        raise PackageError(f"{path}: no Core ML specification, or a damaged one") from None
    kind = spec.WhichOneof("Type")
    if kind != "mlProgram":
        raise PackageError(f"{path}: holds {kind or 'no model'}, expected an ML program (mlProgram)")
    if not spec.mlProgram.functions:
        raise PackageError(f"{path}: its program has no function")
    return spec


def _messages(module: str) -> Any:
    """The format's own protobuf classes, which coremltools brings.

    Loaded beside it, under another name: coremltools itself imports torch where it is installed, and takes seconds.
    """
    if PROTO not in sys.modules:
        found = find_spec("coremltools")
        if found is None or not found.submodule_search_locations:
            raise MilError("coremltools is not installed; it brings the classes that read a package")
        folder = Path(found.submodule_search_locations[0]) / "proto"
        spec = spec_from_file_location(
            PROTO, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise MilError(f"{folder}: no protobuf classes; expected those of coremltools 7 or newer")
        sys.modules[PROTO] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PROTO])
    return import_module(f"{PROTO}.{module}")
