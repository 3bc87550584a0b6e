"""Statistics of calibrations in the user's cache folder, by what they were made from and by their hash."""

import os
import shutil
import tempfile
from pathlib import Path

from safetensors import SafetensorError

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import file_entry
from voxport.bundle.user_cache import private_folder
from voxport.quantize.calibration import AGAIN, Calibration

FOLDER = "calibrations"
GIVEN = "given"  # the key of statistics that the user gave


def find_calibration(sha256: str) -> Calibration:
    """The statistics of a hash. Raises UsageError if they are not here."""
    found = next(iter(private_folder(FOLDER).glob(f"*-{sha256}.safetensors")), None)
    if found is None:
        raise UsageError(
            f"the statistics of its calibration, {sha256[:12]}, are not in {private_folder(FOLDER)}; copy "
            "them from that folder of the machine that made the bundle",
            field="calibration",
        )
    calibration = read_calibration(found)
    if calibration.sha256 != sha256:
        raise UsageError(
            f"{found}: is damaged: its hash differs; remove it, and {AGAIN}", field="calibration"
        )
    return calibration


def read_calibration(path: Path) -> Calibration:
    """Raises UsageError if the file has no statistics."""
    try:
        found, reason = Calibration(path), "no weights"
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError) as error:
        found, reason = None, str(error)
    if not found or not found.schemes:
        raise UsageError(f"{path}: has no statistics of a calibration ({reason})", field="calibrate")
    return found


def made_before(key: str) -> str | None:
    """The hash of the statistics that were made from `key`."""
    found = next(iter(private_folder(FOLDER).glob(f"{key}-*.safetensors")), None)
    return found.stem.rpartition("-")[2] if found else None


def keep(path: Path, key: str) -> str:
    """Moves new statistics, a file in the cache folder, to their name. Returns their hash."""
    sha256 = file_entry(path).sha256
    os.replace(path, private_folder(FOLDER) / f"{key}-{sha256}.safetensors")
    return sha256


def keep_copy(path: Path, key: str) -> str:
    """The same for a file that stays where it is."""
    with tempfile.TemporaryDirectory(suffix=".partial", dir=private_folder(FOLDER)) as folder:
        return keep(Path(shutil.copyfile(path, Path(folder) / path.name)), key)
