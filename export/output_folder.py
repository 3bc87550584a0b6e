"""A hidden folder beside the output folder. It gets that name when it is complete.

It is removed when anything fails. Finished graphs stay for the next run if a run is interrupted or killed, if
the disk is full, or if artifacts do not match eager.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bundle.errors import ExportError, UsageError, VerificationError
from bundle.interruption import uninterrupted
from bundle.manifest import REPORT
from export.resume import remove_unrecorded

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def staging(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that replaces it at the end.

    It may hold finished artifacts of an earlier run. After a VerificationError it also keeps the report.

    Raises ExportError where the disk is full or closed, UsageError where another process is writing `out`.
    """
    out = Path(os.path.realpath(out))  # where a link leads; `.` has no name to be renamed by
    folder = out.parent / f".{out.name}.partial"
    for hidden in (folder, _old(out)):
        if hidden.is_symlink():  # what it leads to would be emptied
            raise UsageError(f"{hidden}: is a link, expected the folder of an export; remove it")
    new_parents = [parent for parent in (out.parent, *out.parent.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, out):
            try:
                yield folder
            except BaseException as error:
                with uninterrupted():
                    _clean_up(folder, error)
                raise
            _replace(folder, out)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise ExportError(
                f"{out.parent}: no space left on the disk; free some or use another output folder"
            ) from None
        raise ExportError(f"{error.filename or out}: {error.strerror or error}") from None
    finally:
        with uninterrupted():
            for parent in new_parents:  # the deepest first; full ones stay
                with suppress(OSError):
                    parent.rmdir()


def _clean_up(folder: Path, error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, OSError) and error.errno in DISK_FULL):
        if not remove_unrecorded(folder):
            folder.rmdir()
    elif isinstance(error, VerificationError):
        remove_unrecorded(folder, REPORT)
    else:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    """Locks the folder itself, so the lock ends with its process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not (folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat())):
            raise BlockingIOError
        yield
    except BlockingIOError:
        raise UsageError(
            f"{out}: another export is writing it; wait for that one or use another output folder"
        ) from None
    finally:
        os.close(descriptor)


def _old(out: Path) -> Path:
    """Where a folder is until its successor is in its place."""
    return out.parent / f".{out.name}.old"


def _replace(folder: Path, out: Path) -> None:
    """From here on the hidden name may be another process's."""
    if not (out.exists() or out.is_symlink()):
        os.replace(folder, out)
        return
    old = _old(out)
    shutil.rmtree(old, ignore_errors=True)
    os.replace(out, old)
    try:
        os.replace(folder, out)
    except OSError:
        os.replace(old, out)
        raise
    shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
