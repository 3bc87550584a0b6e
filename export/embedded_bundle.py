"""Bundles of the embedded models in the user's cache folder, exported on first use."""

import hashlib
import logging
from importlib.metadata import version
from pathlib import Path

from bundle.errors import VoxportError
from bundle.manifest import SCHEMA_VERSION, ExportRequest
from bundle.user_cache import private_folder
from model.embedded import embedded_default, embedded_name

TARGET = "onnx"
log = logging.getLogger(__name__)


def embedded_bundle(family: str) -> Path:
    """The folder of a family's embedded model as an ONNX bundle in full precision, with live audio.

    The path has a hash of the checkpoint, so another checkpoint has another bundle. Raises VoxportError.
    """
    checkpoint = embedded_default(family)
    try:
        folder = private_folder("bundles") / _digest(checkpoint) / embedded_name(family)
    except OSError as error:
        raise VoxportError(f"the embedded model's bundle cannot be stored: {error}; give --bundle") from None
    if not folder.exists():
        _export(checkpoint, folder)
    return folder


def _digest(checkpoint: Path) -> str:
    digest = hashlib.sha256(f"{version('voxport')} {SCHEMA_VERSION}".encode())
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _export(checkpoint: Path, folder: Path) -> None:
    from export.build import Output, build  # imports torch
    from export.job import make_job
    from export.resolve import Source, resolve
    from export.targets import open_target
    from runtime.families import open_family

    source = Source(checkpoint)
    log.info("%s: exporting the embedded model, once", folder)
    request = ExportRequest(options={**open_family(source.family.name).server_options})
    resolved, target = resolve(source, request), open_target(TARGET)
    build(resolved, make_job(resolved, target, folder.name), target, Output(folder))
