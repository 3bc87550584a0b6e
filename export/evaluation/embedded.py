"""The embedded recogniser as a bundle, exported on first use."""

import logging
from pathlib import Path

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
    """The folder of the bundle, in full precision. It is exported again where it is not of this version."""
    source = Source(trained_checkpoint(FAMILY))
    resolved, target = resolve(source, ExportRequest()), open_target(TARGET)
    folder = private_folder("recognisers") / source.folder.name
    log.info("%s: the recogniser that listens", folder)
    job = make_job(resolved, target, source.folder.name)
    build(resolved, job, target, Output(folder, force=True))
    return folder
