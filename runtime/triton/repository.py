"""`write_repository`: a folder that Triton Inference Server loads, from an ONNX bundle."""

import logging
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bundle.errors import IntegrityError, UsageError, VoxportError
from bundle.files import reason_of
from bundle.interruption import uninterrupted
from bundle.manifest import Bundle, ComponentEntry
from runtime.engines.onnx_graph import check_graph, weight_files
from runtime.triton.config import Serving, graph_config

log = logging.getLogger(__name__)
TARGET = "onnx"
MODEL, CONFIG, VERSION = "model.onnx", "config.pbtxt", "1"
DEFAULT = Serving()
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)  # a graph's name becomes that of a folder


def write_repository(
    path: Path, out: Path, graphs: Sequence[str] = (), serving: Serving = DEFAULT
) -> list[str]:
    """Writes one model per graph of the bundle at `path` and returns their names.

    `graphs`: those to write; none is all. `out` is new or empty, and appears when it is complete. Raises
    UsageError, IntegrityError, or VoxportError where the disk is full.
    """
    bundle = Bundle(path)
    if bundle.job.target != TARGET:
        raise UsageError(f"{path}: is a bundle for {bundle.job.target}, expected one for {TARGET}")
    chosen = _choose(bundle, graphs)
    configs = {
        name: graph_config(name, entries, bundle.job.compute_precision, serving)
        for name, entries in chosen.items()
    }
    bundle.check_hashes()
    if not bundle.is_verified:
        log.warning("%s: this bundle is %s", path, bundle.manifest.verification.status)
    with _complete_or_not_at_all(out) as folder:
        for name, entries in chosen.items():
            _write_model(bundle, entries[0].file, folder / name, configs[name])
    return list(chosen)


def _choose(bundle: Bundle, names: Iterable[str]) -> dict[str, list[ComponentEntry]]:
    """The components of the graphs by name. Raises UsageError, IntegrityError."""
    found: dict[str, list[ComponentEntry]] = {}
    for entry in bundle.components:
        if not PLAIN.fullmatch(entry.graph):
            raise IntegrityError(
                f"{bundle.folder}: graph {entry.graph[:50]!r}: is no plain name; export the bundle again"
            )
        found.setdefault(entry.graph, []).append(entry)
    for name in names:
        if name not in found:
            raise UsageError(f"graph {name!r}: expected one of {', '.join(found)}", field="graph")
    return {name: entries for name, entries in found.items() if not names or name in names}


def _write_model(bundle: Bundle, file: str, folder: Path, config: str) -> None:
    """Weights keep the name that the graph has for them, and their place beside it."""
    graph, version = bundle.folder / file, folder / VERSION
    check_graph(graph, bundle.manifest.files)
    version.mkdir(parents=True)
    (folder / CONFIG).write_text(config, encoding="utf-8")
    shutil.copyfile(graph, version / MODEL)
    for name in weight_files(graph):
        (version / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.folder / name, version / name)


@contextmanager
def _complete_or_not_at_all(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that gets its name at the end. Raises UsageError, VoxportError."""
    out = out.absolute()
    if not out.parent.is_dir():
        raise UsageError(f"out: the folder {out.parent} does not exist; create it", field="out")
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise UsageError(f"out: {out} is not empty; name a new or empty folder", field="out")
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name[:100]}.", dir=out.parent))
        yield folder
        folder.chmod(0o755)  # as of other folders: Triton may run as another user
        folder.replace(out)
    except OSError as error:
        raise VoxportError(f"{out.parent}: {reason_of(error)}", field="out") from None
    finally:
        with uninterrupted():
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
