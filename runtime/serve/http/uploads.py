"""Multipart bodies, and an uploaded file on disk while it is read."""

import asyncio
import logging
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.http.responses import with_body_limits
from voxport.runtime.serve.limits import MIB, Limits

MAX_FIELDS = 64
SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,5}$")
MULTIPART = "multipart/form-data"
# Threads that store and measure uploads. The default ones would be occupied, and speech would wait.
THREADS = ThreadPoolExecutor(2, "upload")
Result = TypeVar("Result")
log = logging.getLogger(__name__)


async def in_upload_thread(function: Callable[..., Result], *arguments: object) -> Result:
    """The result of a call that may take seconds."""
    return await asyncio.get_running_loop().run_in_executor(THREADS, function, *arguments)


class _Parser(MultiPartParser):
    """`has_ended`: whether the closing boundary has arrived."""

    has_ended = False

    def on_end(self) -> None:
        self.has_ended = True


async def read_form(request: Request, file: str, limits: Limits) -> FormData:
    """The form, whose field `file` is an upload. Raises ApiError."""
    body = with_body_limits(request, limits.upload_mib * MIB, "upload", limits.body_s)
    if not request.headers.get("content-type", "").lower().startswith(MULTIPART):
        raise _missing(file)
    return await _parse(body, file)


def upload_of(form: FormData, file: str) -> UploadFile:
    """The upload of the field `file`. Raises ApiError."""
    upload = form.get(file)
    if not isinstance(upload, UploadFile):
        raise _missing(file)
    return upload


def _missing(file: str) -> ApiError:
    return ApiError(400, f"{file}: expected a recording in {MULTIPART}", "missing_file", file)


async def _parse(body: Request, file: str) -> FormData:
    parser = _Parser(body.headers, body.stream(), max_files=1, max_fields=MAX_FIELDS)
    try:
        form = await parser.parse()
        for name, value in form.multi_items():
            f"{name}{value}".encode()  # no answer can have a text without UTF-8
    except UnicodeError:  # in another `charset`, which the client may name in the media type
        raise ApiError(400, "body: expected texts in UTF-8", "invalid_multipart") from None
    except MultiPartException as error:
        raise ApiError(400, f"body: {error.message}", "invalid_multipart") from None
    except OSError as error:  # a large upload goes to the disk while it arrives
        raise _not_stored(error, file) from None
    if not parser.has_ended:  # the last fields may be missing
        await form.close()
        raise ApiError(400, "body: ends before its closing boundary", "invalid_multipart")
    return form


@asynccontextmanager
async def stored_upload(upload: UploadFile, field: str) -> AsyncIterator[Path]:
    """The upload as a file, which is deleted at the end. Raises ApiError if the disk is full.

    `field` is its name in the form.
    """
    storing = asyncio.create_task(in_upload_thread(_store, upload, field))
    try:
        await asyncio.wait((storing,))
        yield storing.result()
    finally:
        await asyncio.wait((storing,))  # a thread cannot be stopped
        if not storing.exception():
            storing.result().unlink(missing_ok=True)
        await upload.close()


def _store(upload: UploadFile, field: str) -> Path:
    file = None
    try:
        # the file is open until the recording is; its name is deleted then
        suffix = SUFFIX.search(upload.filename or "")  # for messages
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115
            prefix="voxport-", suffix=suffix[0] if suffix else None, delete=False
        )
        with file:
            shutil.copyfileobj(upload.file, file)
    except OSError as error:
        if file:
            Path(file.name).unlink()
        raise _not_stored(error, field) from None
    return Path(file.name)


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
