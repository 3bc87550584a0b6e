"""Bundles of the embedded models in the user's cache folder, exported on first use."""

import hashlib
import json
import logging
from pathlib import Path

from voxport.bundle.errors import VoxportError
from voxport.bundle.manifest import SCHEMA_VERSION, Bundle, ExportRequest
from voxport.bundle.user_cache import private_folder
from voxport.bundle.versions import package_version
from voxport.runtime.families import open_family

TARGET = "onnx"
log = logging.getLogger(__name__)


def embedded_bundle(family: str, checkpoint: Path, quant: str = "w8") -> Path:
    """The folder of a family's checkpoint as an ONNX bundle with a recipe and with live audio.

    The path has a hash of all that, so another checkpoint has another bundle. A damaged bundle is
    replaced. Raises VoxportError.
    """
    request = ExportRequest(quant=quant, options={**open_family(family).server_options})
    try:
        folder = private_folder("bundles") / _digest(checkpoint, request) / checkpoint.name
    except OSError as error:
        raise VoxportError(f"the bundle of the embedded model cannot be stored: {error}") from None
    if not _is_whole(folder):
        log.info("%s: exporting and verifying the embedded model, once; this takes minutes", folder)
        _export(checkpoint, request, folder)
    return folder


def _digest(checkpoint: Path, request: ExportRequest) -> str:
    about = [package_version("voxport"), SCHEMA_VERSION, TARGET, request.model_dump()]
    digest = hashlib.sha256(json.dumps(about).encode())
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _is_whole(folder: Path) -> bool:
    if not folder.exists():
        return False
    try:
        Bundle(folder).check_hashes()
    except VoxportError as error:
        log.warning("%s; it is exported again", error)
        return False
    return True


def _export(checkpoint: Path, request: ExportRequest, folder: Path) -> None:
    from voxport.export.build import OutputSettings, build  # imports torch
    from voxport.export.job import make_job
    from voxport.export.resolve import Source, resolve
    from voxport.export.targets import open_target

    resolved, target = resolve(Source(checkpoint), request), open_target(TARGET)
    build(resolved, make_job(resolved, target, folder.name), target, OutputSettings(folder, force=True))
