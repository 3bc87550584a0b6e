"""A folder that gets its name when all that belongs in it is there, and is gone when anything fails.

A run that is interrupted or killed leaves it, hidden, with the parts that were finished."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bundle.errors import ExportError, UsageError
from export.resume import remove_unrecorded


@contextmanager
def staging(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that replaces it at the end.

    It may hold finished artifacts of a run that was interrupted or killed.

    Raises ExportError where the disk is full or closed, UsageError where another process is writing `out`.
    """
    out = Path(os.path.abspath(out))  # `.` has no name to be renamed by
    folder = out.parent / f".{out.name}.partial"
    new_parents = [parent for parent in (out.parent, *out.parent.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, out):
            try:
                yield folder
            except KeyboardInterrupt:
                if not remove_unrecorded(folder):
                    folder.rmdir()
                raise
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            _replace(folder, out)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ExportError(
                f"{out.parent}: no space left on the disk; free some or use another output folder"
            ) from None
        raise ExportError(f"{error.filename or out}: {error.strerror or error}") from None
    finally:
        for parent in new_parents:  # the deepest first; full ones stay
            with suppress(OSError):
                parent.rmdir()


@contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    """The lock lies on the folder itself, so that it ends with the process that holds it."""
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


def _replace(folder: Path, out: Path) -> None:
    """From here on the hidden name may be another process's."""
    if not (out.exists() or out.is_symlink()):
        os.replace(folder, out)
        return
    old = out.parent / f".{out.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    os.replace(out, old)
    try:
        os.replace(folder, out)
    except OSError:
        os.replace(old, out)
        raise
    shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
