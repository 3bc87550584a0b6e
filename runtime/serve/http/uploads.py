"""Multipart bodies: their fields, and an uploaded file on disk while it is read."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError, wrong_fields

MAX_FIELDS = 64
# Threads that store, measure and encode uploads. The default ones would be occupied, and speech would wait.
THREADS = ThreadPoolExecutor(2, "upload")
LIST = "[]"  # the end of the names of fields that may be repeated
Result = TypeVar("Result")
Fields = TypeVar("Fields", bound=BaseModel)
log = logging.getLogger(__name__)


async def in_upload_thread(function: Callable[..., Result], *arguments: object) -> Result:
    """The result of a call that may take seconds."""
    return await asyncio.get_running_loop().run_in_executor(THREADS, function, *arguments)


async def read_form(request: Request, file: str) -> tuple[FormData, UploadFile]:
    """The form, and the upload of its field `file`. Raises ApiError."""
    try:
        form = await request.form(max_files=1, max_fields=MAX_FIELDS)
        _check_unicode(form)
    except UnicodeError:  # in another `charset`, which the client may name in the media type
        raise ApiError(400, "body: expected texts in UTF-8", "invalid_multipart") from None
    except (MultiPartException, HTTPException) as error:
        detail = error.message if isinstance(error, MultiPartException) else error.detail
        raise ApiError(400, f"body: {detail}", "invalid_multipart") from None
    except OSError as error:  # a large upload goes to the disk while it arrives
        raise _not_stored(error, file) from None
    upload = form.get(file)
    if not isinstance(upload, UploadFile):
        raise ApiError(400, f"{file}: expected a recording in multipart/form-data", "missing_file", file)
    return form, upload


def _check_unicode(form: FormData) -> None:
    """Raises UnicodeError if a name or a text has no UTF-8, so no answer can have it."""
    for name, value in form.multi_items():
        f"{name}{value}".encode()


def parse_form(form: FormData, kind: type[Fields]) -> Fields:
    """The texts of a form. The last text of a field counts, unless the field is a list. Raises ApiError."""
    texts: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for name, value in form.multi_items():
        if isinstance(value, str) and name.endswith(LIST):
            lists.setdefault(name, []).append(value)
        elif isinstance(value, str):
            texts[name] = value
    try:
        return kind.model_validate({**texts, **lists})
    except ValidationError as error:
        raise wrong_fields(error) from None


def form_schema(kind: type[BaseModel], file: str) -> Json:
    """The description of a form with the fields of `kind` and an upload."""
    schema = kind.model_json_schema()
    schema["properties"][file] = {"type": "string", "format": "binary"}
    schema["required"].append(file)
    return {"requestBody": {"content": {"multipart/form-data": {"schema": schema}}, "required": True}}


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
        file = tempfile.NamedTemporaryFile(prefix="voxport-", delete=False)  # noqa: SIM115
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
