"""Multipart bodies: their fields, and an uploaded file on disk while it is read."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.types import Message

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.errors import ApiError

MAX_FIELDS = 64
LAST_BYTES = 1024  # of a body, in which the closing boundary is
# Threads that store, measure and encode uploads. The default ones would be occupied, and speech would wait.
THREADS = ThreadPoolExecutor(2, "upload")
Result = TypeVar("Result")
log = logging.getLogger(__name__)


async def in_upload_thread(function: Callable[..., Result], *arguments: object) -> Result:
    """The result of a call that may take seconds."""
    return await asyncio.get_running_loop().run_in_executor(THREADS, function, *arguments)


async def read_form(request: Request, file: str) -> tuple[FormData, UploadFile]:
    """The form, and the upload of its field `file`. Raises ApiError."""
    end = BodyEnd(request)
    try:
        form = await end.request.form(max_files=1, max_fields=MAX_FIELDS)
        _check_unicode(form)
    except UnicodeError:  # of another `charset`, which the client may name in the media type
        raise ApiError(400, "body: expected texts in UTF-8", "invalid_multipart") from None
    except (MultiPartException, HTTPException) as error:
        detail = error.message if isinstance(error, MultiPartException) else error.detail
        raise ApiError(400, f"body: {detail}", "invalid_multipart") from None
    except OSError as error:  # a large upload goes to the disk while it arrives
        raise _not_stored(error, file) from None
    end.check()
    upload = form.get(file)
    if not isinstance(upload, UploadFile):
        raise ApiError(400, f"{file}: expected a recording in multipart/form-data", "missing_file", file)
    return form, upload


class BodyEnd:
    """Notes the end of a multipart body: the parser drops a part that is not complete without an error."""

    def __init__(self, request: Request):
        """`request` with the noted body is read in place of the one that is given."""
        media_type, options = parse_options_header(request.headers.get("content-type", ""))
        is_multipart = media_type == b"multipart/form-data"
        self._closing = b"--" + options.get(b"boundary", b"") + b"--" if is_multipart else b""
        self._receive, self._last = request.receive, b""
        self.request = Request(request.scope, self._noted)

    async def _noted(self) -> Message:
        part = await self._receive()
        self._last = (self._last + part.get("body", b""))[-LAST_BYTES:]
        return part

    def check(self) -> None:
        """Raises ApiError where the body ends before its last boundary."""
        if self._closing not in self._last:
            raise ApiError(400, "body: ends before its closing boundary", "invalid_multipart")


def _check_unicode(form: FormData) -> None:
    """Raises UnicodeError where a name or a text has no UTF-8, so no answer can have it."""
    for name, value in form.multi_items():
        f"{name}{value}".encode()


def text_fields(form: FormData, names: tuple[str, ...]) -> dict[str, str]:
    """The last text of each field. Raises ApiError on a field that is not one of `names`."""
    values: dict[str, str] = {}
    for name, value in form.multi_items():
        if name not in names:
            short = name[:50]
            raise ApiError(400, f"{short}: expected one of {', '.join(names)}", "unknown_field", short)
        if isinstance(value, str):
            values[name] = value
    return values


class StoredUpload:
    """The upload as a file, which is deleted at the end. Raises ApiError where the disk is full."""

    def __init__(self, upload: UploadFile, field: str):
        """`field` is its name in the form."""
        self._upload, self._field = upload, field

    async def __aenter__(self) -> Path:
        storing = asyncio.create_task(in_upload_thread(self._store))
        try:
            return await asyncio.shield(storing)
        except asyncio.CancelledError:  # a thread cannot be stopped: what it stores is deleted
            await asyncio.wait((storing,))
            if not storing.exception():
                storing.result().unlink()
            raise

    def _store(self) -> Path:
        try:
            # the file is open until the recording is; its name is deleted then
            file = tempfile.NamedTemporaryFile(prefix="voxport-", delete=False)  # noqa: SIM115
        except OSError as error:
            raise _not_stored(error, self._field) from None
        self._path = Path(file.name)
        try:
            with file:
                shutil.copyfileobj(self._upload.file, file)
        except OSError as error:
            self._path.unlink()
            raise _not_stored(error, self._field) from None
        return self._path

    async def __aexit__(self, *error: object) -> None:
        with suppress(FileNotFoundError):
            self._path.unlink()
        await self._upload.close()


def _not_stored(error: OSError, field: str) -> ApiError:
    log.error("an upload cannot be stored: %s", error)
    return ApiError(503, "the upload cannot be stored", "storage_full", field, retry_after=30)


@contextmanager
def path_hidden(path: Path, field: str) -> Iterator[None]:
    """Turns a UsageError into an ApiError whose message has `field` instead of the path of the upload."""
    try:
        yield
    except UsageError as error:
        message = str(error).replace(str(path), field)
        raise ApiError(400, message, "invalid_audio", field) from None
