"""Remembers which checks a bundle passed, in the user's cache folder, until its files change."""

import hashlib
import logging
import sys
import time
from contextlib import suppress
from pathlib import Path

from voxport.bundle.manifest import Bundle
from voxport.bundle.user_cache import private_folder

SETTLED_NS = 2 * 10**9  # file systems store times in steps of up to 2 s, so a second change may not show
MAX_MARKS = 1000  # of one check, each an empty file
log = logging.getLogger(__name__)


def files_on_disk(bundle: Bundle) -> str:
    """Names the files of a bundle as they are on this disk, by path, size, times and inode, without reading
    them. Raises OSError.
    """
    found = {name: (bundle.folder / name).stat() for name in bundle.engine_files}
    return "\n".join(
        [str(bundle.folder.resolve())]
        + [
            f"{name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino} {stat.st_dev}"
            for name, stat in found.items()
        ]
    )


class PassedCheck:
    """The check `name` of a bundle's files, as they are on this disk when this is made."""

    def __init__(self, name: str, bundle: Bundle):
        self._mark: Path | None = None
        try:
            key = (bundle.manifest.model_dump_json() + files_on_disk(bundle)).encode()
            self._mark = private_folder(name) / hashlib.sha256(key).hexdigest()
        except OSError as error:
            log.info("%s: checked at every start: %s", bundle.folder, error)

    @property
    def is_known(self) -> bool:
        return self._mark is not None and self._mark.exists()

    def remember(self) -> None:
        """Call it when the check has passed."""
        if self._mark:
            with suppress(OSError):  # checked again at the next start
                self._mark.touch()
                marks = sorted(self._mark.parent.iterdir(), key=lambda path: path.stat().st_mtime)
                for mark in marks[:-MAX_MARKS]:
                    mark.unlink(missing_ok=True)


def check_hashes_once(bundle: Bundle) -> None:
    """`Bundle.check_hashes`, without reading the files again while they stay as they were.

    On Windows they are always read: it has no time of the last change that a program cannot set.
    """
    passed = PassedCheck("hashed", bundle)
    if passed.is_known and sys.platform != "win32":
        bundle.check_unlisted()
        return
    is_settled = _last_change(bundle) < time.time_ns() - SETTLED_NS
    bundle.check_hashes()
    if is_settled:
        passed.remember()


def _last_change(bundle: Bundle) -> int:
    """Nanoseconds since 1970. Later than any time if a file is gone, which the check will say."""
    try:
        found = [(bundle.folder / name).stat() for name in bundle.engine_files]
    except OSError:
        return sys.maxsize
    return max((max(stat.st_mtime_ns, stat.st_ctime_ns) for stat in found), default=0)
