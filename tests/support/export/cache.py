"""Exports that several test runs share, in the user's cache folder.

Artifacts of a graph are stored under its key for resuming (`export.job.graph_key`), verified bundles under a
hash of all code that makes or checks a bundle. `VOXPORT_TEST_CACHE=off` shares them within one run only.
"""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from functools import cache, partial
from pathlib import Path, PosixPath
from tempfile import mkdtemp

from filelock import FileLock, Timeout
from platformdirs import user_cache_path
from support.paths import ROOT

from voxport.bundle.files import files_below
from voxport.bundle.manifest import WeightError
from voxport.export.__main__ import main as export
from voxport.export.staging import FinishedGraph, ResumeCache, cached_by

SHARED = user_cache_path(
    "voxport-tests", appauthor=False
)  # read before tests have a cache folder of their own
MAX_BYTES = 2e9  # the least recently used entries above it are removed
GRAPH = "graph.json"
# Code that makes, runs or checks a bundle, and the tests' own choice of how much is checked.
SOURCES = ("bundle", "export", "model", "quantize", "runtime", "tests/support/export")
Checks = Callable[[], AbstractContextManager[None]]


class ExportCache:
    """Entries are folders, named by their key. An entry is locked while it is written, copied or removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def export(self, out: Path, *arguments: str, checks: Checks = nullcontext) -> Path:
        """Exports a bundle to `out`, or copies it. `checks` is a context that decides how it is verified."""
        command = [*arguments, "--out", str(out)]
        if "--no-verify" in arguments:
            with self.artifacts(), redirect_stdout(io.StringIO()):
                assert export(command) == 0
            return out
        key = key_of(_known(arguments), checks.__name__)
        with self.locked(key):
            if not self.restore(key, out):
                with self.artifacts(), checks(), redirect_stdout(io.StringIO()):
                    assert export(command) == 0
                self.store(key, out)
        return out

    @contextmanager
    def artifacts(self) -> Iterator[None]:
        """Exports in this process take artifacts from here. No fault may be planted meanwhile."""
        with cached_by(partial(SharedGraphs, self)):
            yield

    def restore(self, key: str, out: Path) -> bool:
        """Copies an entry into `out`, if there is one."""
        if not (entry := self._folder / key).is_dir():
            return False
        os.utime(entry)
        shutil.copytree(entry, out, dirs_exist_ok=True)
        return True

    def store(self, key: str, content: Path) -> None:
        """The entry appears when it is complete. If another process was first, its entry stays."""
        part = Path(mkdtemp(prefix=".part-", dir=self._folder))
        shutil.copytree(content, part, dirs_exist_ok=True)
        with suppress(OSError):
            part.rename(self._folder / key)
        shutil.rmtree(part, ignore_errors=True)

    @contextmanager
    def locked(self, key: str, timeout: float = -1) -> Iterator[None]:
        with FileLock(self._folder / f"{key}.lock", timeout=timeout):
            yield

    def prune(self, limit: float = MAX_BYTES) -> None:
        """Removes the least recently used entries that no process has locked."""
        with suppress(FileNotFoundError), self.locked("prune"):  # an entry may get its name meanwhile
            entries = [path for path in self._folder.iterdir() if path.is_dir()]
            for entry in sorted(entries, key=lambda path: path.stat().st_mtime, reverse=True):
                limit -= sum((entry / name).stat().st_size for name in files_below(entry))
                if limit < 0:
                    with suppress(Timeout), self.locked(entry.name, 0):
                        shutil.rmtree(entry)


class SharedBundles(PosixPath):
    """A folder of bundles, one for each target. A bundle is exported when a test first asks for it."""

    make: Callable[[str], Path]

    @classmethod
    def of(cls, folder: Path, make: Callable[[str], Path]) -> "SharedBundles":
        found = cls(folder)
        found.make = make
        return found

    def __truediv__(self, target: str | os.PathLike[str]) -> Path:  # type: ignore[override]
        return self.make(str(target))


class SharedGraphs(ResumeCache):
    """The finished graphs of an export, and those of earlier exports."""

    def __init__(self, cache: ExportCache, folder: Path) -> None:
        super().__init__(folder)
        self._cache = cache

    def find(self, name: str, key: str) -> FinishedGraph | None:
        with self._cache.locked(key):
            if not self._cache.restore(key, self._folder):
                return super().find(name, key)
        self._graphs[name] = FinishedGraph.model_validate_json((self._folder / GRAPH).read_bytes())
        (self._folder / GRAPH).unlink()
        self._record()
        return super().find(name, key)

    def make(self, name: str, key: str, lower: Callable[[Path], WeightError | None]) -> FinishedGraph:
        finished = super().make(name, key, lower)
        part = Path(mkdtemp(dir=self._folder.parent))
        for file in finished.files:
            (part / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._folder / file, part / file)
        (part / GRAPH).write_text(finished.model_dump_json())
        self._cache.store(key, part)
        shutil.rmtree(part)
        return finished


def key_of(*values: object) -> str:
    """Key of what all code that makes or checks a bundle makes of these values."""
    packages = (ROOT / "requirements.lock").read_text()
    content = [_code_hash(), packages, *values]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


@cache
def _code_hash() -> str:
    kinds = ("*.py", "*.j2", "*.json")
    found = sorted(path for folder in SOURCES for kind in kinds for path in (ROOT / folder).rglob(kind))
    paths = [path for path in found if ROOT / "runtime" / "serve" not in path.parents]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _known(arguments: tuple[str, ...]) -> list[str]:
    """Arguments with a hash of its files in place of the folder of a checkpoint."""
    found = list(arguments)
    if "--checkpoint" in found:
        place = found.index("--checkpoint") + 1
        found[place] = content_hash(Path(found[place]))
    return found


def content_hash(folder: Path) -> str:
    """Hash of the name of a folder, and of its files."""
    digest = hashlib.sha256(folder.name.encode())
    for name in files_below(folder):
        digest.update(name.encode() + (folder / name).read_bytes())
    return digest.hexdigest()
