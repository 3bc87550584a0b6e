"""A `.mlpackage` on disk: the model and weight files that its `Manifest.json` lists."""

import json
import sys
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf.message import DecodeError

from voxport.runtime.mil.program import Function, Reader, WeightCache
from voxport.runtime.mil.types import CallError, MilError, PackageError, UnsupportedError, require
from voxport.runtime.mil.weights import WeightFile

PROTO = "coreml_protobuf"  # module name under which the protobuf classes are imported


class Package:
    """An opened package. Functions are read on first use.

    Raises CallError if the folder is not a package, PackageError if it contains no readable ML program.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self._model = self._root()
        if self._model.exists() and not self._model.is_file():  # opening a pipe would wait for ever
            raise PackageError(f"{self._model}: is not a file")
        try:
            content = self._model.read_bytes()
        except OSError as error:
            raise PackageError(f"{self._model}: cannot be read: {error.strerror}") from None
        self._spec = _parse(content, self._model)
        self._functions: dict[str, Function] = {}
        self._weights: dict[str, WeightFile] = {}
        self._weight_cache: WeightCache = {}

    def _root(self) -> Path:
        manifest = self.path / "Manifest.json"
        if not manifest.is_file():
            raise CallError(f"{self.path}: not a package; expected a folder .mlpackage{self._hint()}")
        try:
            content = json.loads(manifest.read_text(encoding="utf-8"))
            path = content["itemInfoEntries"][content["rootModelIdentifier"]]["path"]
        except OSError as error:
            raise PackageError(
                f"{manifest}: cannot be read: {error.strerror}; expected a folder .mlpackage"
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PackageError(f"{manifest}: does not name the model file") from None
        return self._inside(path, self.path / "Data")

    def _hint(self) -> str:
        inside = sorted(part.name for part in self.path.glob("*.mlpackage")) if self.path.is_dir() else []
        if inside:
            return f", such as {', '.join(inside)} in this folder"
        around = next((parent for parent in self.path.parents if parent.suffix == ".mlpackage"), None)
        return f", such as {around}" if around else ""

    def _inside(self, path: object, folder: Path) -> Path:
        """Resolves a path named in the package. Raises PackageError if it is outside the package.

        A link inside the package may lead out of it.
        """
        if isinstance(path, str) and path.isprintable():
            relative = PurePosixPath(path)
            is_below = not relative.is_absolute() and ".." not in relative.parts
            if is_below and (folder / path).resolve().is_relative_to(self.path.resolve()):
                return folder / path
        raise PackageError(f"{self.path}: {str(path)[:80]!r} is not a path inside the package")

    @cached_property
    def function_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._spec.mlProgram.functions))

    @property
    def specification(self) -> int:
        """Version of the specification. Versions 6 to 9 belong to iOS 15 to 18."""
        return int(self._spec.specificationVersion)

    @property
    def default_function(self) -> str:
        """The function that runs if no function is named."""
        named = self._spec.description.defaultFunctionName
        return named if named in self.function_names else self.function_names[0]

    def function(self, name: str | None = None) -> Function:
        """Reads a function, by default the default function.

        Raises CallError for an unknown name, PackageError or UnsupportedError if the function cannot be read.
        """
        name = self.default_function if name is None else name
        require(
            name in self.function_names,
            f"{self.path}: no function {name!r}; expected one of {', '.join(self.function_names)}",
            CallError,
        )
        if name not in self._functions:
            try:
                self._functions[name] = Reader(self._spec, self._weight_file, self._weight_cache).function(
                    name
                )
            except (PackageError, UnsupportedError) as error:
                raise type(error)(f"{self.path}: {error}") from None
        return self._functions[name]

    def _weight_file(self, path: str) -> WeightFile:
        if path not in self._weights:
            self._weights[path] = WeightFile(self._inside(path, self._model.parent))
        return self._weights[path]


# The protobuf messages of coremltools are generated at import and have no type stubs: hence Any.
def _parse(content: bytes, path: Path) -> Any:
    spec = _messages("Model_pb2").Model()
    try:
        spec.ParseFromString(content)
    except (DecodeError, RecursionError):
        raise PackageError(f"{path}: not a Core ML specification, or a damaged one") from None
    found = f"contains {spec.WhichOneof('Type') or 'no model'}, expected an ML program (mlProgram)"
    require(spec.WhichOneof("Type") == "mlProgram", f"{path}: {found}", PackageError)
    require(spec.mlProgram.functions, f"{path}: the program has no function", PackageError)
    return spec


def _messages(module: str) -> Any:
    """Imports a module of the protobuf classes that are part of coremltools.

    The classes are imported under a name of their own. `import coremltools` takes seconds and imports torch
    if it is installed.
    """
    if PROTO not in sys.modules:
        found = find_spec("coremltools")
        if found is None or not found.submodule_search_locations:
            raise MilError("coremltools is not installed; its protobuf classes are needed to read a package")
        folder = Path(found.submodule_search_locations[0]) / "proto"
        spec = spec_from_file_location(
            PROTO, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise MilError(f"{folder}: no protobuf classes; expected coremltools 7 or newer")
        sys.modules[PROTO] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PROTO])
    return import_module(f"{PROTO}.{module}")
