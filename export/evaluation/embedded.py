"""The embedded recogniser as a bundle, exported on first use."""

import logging
from pathlib import Path

from bundle.errors import IntegrityError, UsageError, VoxportError
from bundle.manifest import ExportRequest
from bundle.user_cache import private_folder
from export.build import Output, build
from export.job import make_job
from export.resolve import Source, resolve
from export.targets import open_target
from model.trained import trained_checkpoint

FAMILY, TARGET = "voxtral_realtime", "onnx"
log = logging.getLogger(__name__)


def recogniser_bundle() -> Path:
    """The folder of the bundle, in full precision, in the user's cache folder.

    A bundle of another version is replaced. Raises UsageError without the checkpoint, VoxportError where the
    cache folder cannot be used.
    """
    source = Source(trained_checkpoint(FAMILY))
    resolved, target = resolve(source, ExportRequest()), open_target(TARGET)
    try:
        folder = private_folder("recognisers") / source.folder.name
    except OSError as error:
        raise VoxportError(f"the recogniser cannot be stored: {error}; give --recogniser BUNDLE") from None
    job = make_job(resolved, target, source.folder.name)
    log.info("%s: the recogniser", folder)
    try:
        build(resolved, job, target, Output(folder))
    except (UsageError, IntegrityError):  # the folder holds the bundle of another version, or a damaged one
        build(resolved, job, target, Output(folder, force=True))
    return folder
