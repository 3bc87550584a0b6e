"""POST /v1/audio/transcriptions."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.datastructures import FormData, UploadFile

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.runtime.audio.captions import Word, as_srt, as_vtt, cues, timed_fields
from voxport.runtime.audio.gain import amplified, recording_gain_db
from voxport.runtime.audio.sources import Recording
from voxport.runtime.serve.errors import ApiError, from_exception
from voxport.runtime.serve.http.responses import (
    CLIENT_LEFT,
    ClientLeft,
    StreamedResponse,
    while_connected,
    with_body_limits,
)
from voxport.runtime.serve.http.uploads import (
    in_upload_thread,
    path_hidden,
    read_form,
    stored_upload,
    text_fields,
)
from voxport.runtime.serve.limits import MIB, Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.api import event
from voxport.runtime.serve.transcription.job import TranscriptionJob
from voxport.runtime.serve.transcription.worker import TranscriptionWorker

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
GRANULARITIES = ("word", "segment")
LIST_FIELD = "timestamp_granularities[]"
UNKNOWN_LANGUAGE = "unknown"  # the model detects it, and does not say which one it is
NO_TEXT_HEADER = "x-no-text"  # holds the reason, in a response without text
DELAY = "^[0-9]{1,6}$"  # milliseconds
FIELDS = (
    "file",
    "model",
    "response_format",
    LIST_FIELD,
    "stream",
    "delay_ms",
    "language",
    "temperature",
    "prompt",
)


@dataclass(frozen=True)
class TranscriptionOptions:
    """The fields of a request besides the recording."""

    model: str
    response_format: str
    granularities: tuple[str, ...]
    stream: bool
    delay_ms: int | None
    language: str | None


@dataclass
class Transcript:
    """The text of a job so far."""

    text: str = ""
    words: list[Word] = field(default_factory=list)

    async def collect(self, job: TranscriptionJob) -> AsyncIterator[str]:
        """Yields each new piece of text. The text has no blank in front."""
        while (delta := await job.read()) is not None:
            self.words += delta.words
            text = delta.text if self.text else delta.text.lstrip()
            self.text += text
            if text:
                yield text


def transcription_router(models: Models, limits: Limits) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/audio/transcriptions", response_class=Response, openapi_extra={"requestBody": _schema()}
    )
    async def transcribe(request: Request) -> Response:
        body = with_body_limits(request, limits.upload_mib * MIB, "upload", limits.body_s)
        form, upload = await read_form(body, "file")
        options = _parse(form)
        worker = models.transcription_worker(options.model)
        worker.check_language(options.language)
        languages = worker.task.languages
        known = languages[0] if len(languages) == 1 else UNKNOWN_LANGUAGE
        options = replace(options, language=options.language or known)
        key = request.scope["voxport"]["key"]
        _check_room(worker, key, options)
        try:
            found = await while_connected(request.receive, _open(upload, worker.task.sample_rate, limits))
        except ClientLeft:
            return Response(status_code=CLIENT_LEFT)  # nobody receives it
        job = worker.submit(key, options.delay_ms, found.length_s)
        feeding = asyncio.create_task(_feed(job, found, limits))
        end = _end_function(job, feeding)
        if options.stream:
            return StreamedResponse(_events(job), "text/event-stream", end, _error_event)
        return await _whole_response(request, job, options, end)

    return router


def _schema() -> Json:
    properties: Json = {name: {"type": "string"} for name in FIELDS}
    properties["file"] = {"type": "string", "format": "binary"}
    properties["response_format"]["enum"] = list(FORMATS)
    properties["stream"]["enum"] = ["true", "false"]
    properties["delay_ms"]["pattern"] = DELAY
    properties[LIST_FIELD] = {"type": "array", "items": {"type": "string", "enum": list(GRANULARITIES)}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["file", "model"],
        "additionalProperties": False,
    }
    return {"content": {"multipart/form-data": {"schema": schema}}, "required": True}


def _parse(form: FormData) -> TranscriptionOptions:
    """Raises ApiError that names the field."""
    values = text_fields(form, FIELDS)
    granularities = tuple(str(value) for value in form.getlist(LIST_FIELD))
    checks = {
        "model": ("model" in values, "expected the name of a model"),
        "response_format": (
            values.get("response_format", "json") in FORMATS,
            f"expected one of {', '.join(FORMATS)}",
        ),
        LIST_FIELD: (set(granularities) <= set(GRANULARITIES), f"expected {' or '.join(GRANULARITIES)}"),
        "stream": (values.get("stream", "false") in ("true", "false"), "expected true or false"),
        "delay_ms": (bool(re.fullmatch(DELAY, values.get("delay_ms", "0"))), "expected milliseconds"),
        "temperature": (_is_zero(values.get("temperature", "0")), "expected 0; the likeliest text is taken"),
        "prompt": (not values.get("prompt"), "this server takes none; leave it out"),
    }
    for name, (is_right, expected) in checks.items():
        if not is_right:
            raise ApiError(400, f"{name}: {expected}", "invalid_value", name)
    response_format, stream = values.get("response_format", "json"), values.get("stream") == "true"
    _check_combination(response_format, granularities, stream)
    delay = values.get("delay_ms")
    return TranscriptionOptions(
        values["model"],
        response_format,
        granularities or ("segment",),
        stream,
        None if delay is None else int(delay),
        values.get("language") or None,
    )


def _check_combination(response_format: str, granularities: tuple[str, ...], stream: bool) -> None:
    """Refuses fields that would have no effect. Raises ApiError."""
    if stream and response_format != "json":
        reason = "response_format: expected json with stream; its events have no other format"
        raise ApiError(400, reason, "invalid_value", "response_format")
    if granularities and (stream or response_format != "verbose_json"):
        needed = "a request without stream" if stream else "response_format verbose_json"
        reason = f"{LIST_FIELD}: needs {needed}"
        raise ApiError(400, reason, "invalid_value", "timestamp_granularities")


def _is_zero(text: str) -> bool:
    with suppress(ValueError):
        return float(text) == 0
    return False


def _check_room(worker: TranscriptionWorker, key: str, options: TranscriptionOptions) -> None:
    """Before the recording is stored and read. Raises ApiError."""
    try:
        worker.check_room(key, options.delay_ms)
    except UsageError as error:
        raise from_exception(error) from None


@dataclass(frozen=True)
class OpenRecording:
    """Blocks float32 [n] of an upload. `path` was its name. `length_s` is None where the header has none."""

    path: Path
    length_s: float | None
    blocks: Iterator[np.ndarray]


async def _open(upload: UploadFile, rate: int, limits: Limits) -> OpenRecording:
    """Stores and measures an upload, until the client leaves. Raises ApiError."""
    has_left = Event()  # a thread cannot be stopped: it looks at this after each block

    def check(seconds: float) -> None:
        if has_left.is_set():
            raise ClientLeft
        _check_length(seconds, limits)

    async with stored_upload(upload, "file") as path:
        try:
            with path_hidden(path, "file"):
                return await in_upload_thread(_measured, path, rate, check)
        except asyncio.CancelledError:
            has_left.set()
            raise


def _measured(path: Path, rate: int, check: Callable[[float], None]) -> OpenRecording:
    """Quiet recordings are made louder, as `voxport transcribe` does. Raises UsageError on a damaged one."""
    recording = Recording(path, rate)
    check(recording.length_s or 0)
    gain = recording_gain_db("auto", recording.peak_dbfs(check))
    if recording.damage:  # a part of the text would look like all of it
        raise UsageError(f"file: {recording.damage}; repair it")
    blocks = amplified(recording.blocks(), gain, is_auto=True) if gain else recording.blocks()
    return OpenRecording(path, recording.length_s, blocks)


def _check_length(seconds: float, limits: Limits) -> None:
    """Raises ApiError."""
    most = limits.recording_s
    if seconds > most:
        raise ApiError(400, f"file: more than {most} s of audio; split it", "audio_too_long", "file")


async def _feed(job: TranscriptionJob, found: OpenRecording, limits: Limits) -> None:
    """Reads the recording as fast as it is transcribed."""
    try:
        while (block := await asyncio.to_thread(next, found.blocks, None)) is not None:
            job.feed(block)
            _check_length(job.seconds, limits)
            await job.wait_for_room()
        job.finish()
    except Exception as error:
        message = str(error).replace(str(found.path), "file")
        job.cancel()
        job.end(error if isinstance(error, ApiError) else ApiError(400, message, "invalid_audio", "file"))


def _end_function(job: TranscriptionJob, feeding: asyncio.Task[None]) -> Callable[[], None]:
    def end() -> None:
        feeding.cancel()
        job.cancel()

    return end


async def _whole_response(
    request: Request, job: TranscriptionJob, options: TranscriptionOptions, end: Callable[[], None]
) -> Response:
    transcript = Transcript()

    async def collect() -> None:
        async for _ in transcript.collect(job):
            pass

    try:
        await while_connected(request.receive, collect())
    except ClientLeft:
        return Response(status_code=CLIENT_LEFT)  # is not sent
    finally:
        end()
    response = _formatted(transcript, options, job.seconds)
    if not transcript.text.strip():
        response.headers[NO_TEXT_HEADER] = job.reason_without_text()
    return response


def _formatted(transcript: Transcript, options: TranscriptionOptions, seconds: float) -> Response:
    text, usage = transcript.text.strip(), {"type": "duration", "seconds": round(seconds, 3)}
    match options.response_format:
        case "json":
            return JSONResponse({"text": text, "usage": usage})
        case "text":
            return PlainTextResponse(f"{text}\n")
        case "srt":
            return PlainTextResponse(as_srt(transcript.words))
        case "vtt":
            return PlainTextResponse(as_vtt(transcript.words), media_type="text/vtt")
    content: Json = {
        "task": "transcribe",
        "language": options.language,
        "duration": usage["seconds"],
        "text": text,
    }
    if "word" in options.granularities:
        content["words"] = [timed_fields(word) for word in transcript.words]
    if "segment" in options.granularities:
        content["segments"] = [
            {"id": index, **timed_fields(cue, "text")} for index, cue in enumerate(cues(transcript.words))
        ]
    return JSONResponse(content | {"usage": usage})


async def _events(job: TranscriptionJob) -> AsyncIterator[bytes]:
    transcript, pieces = Transcript(), 0
    async for text in transcript.collect(job):
        pieces += 1
        yield event({"type": "transcript.text.delta", "delta": text})
    audio_tokens = round(job.seconds / 0.08)  # one per 80 ms
    usage = {
        "type": "tokens",
        "input_tokens": audio_tokens,
        "output_tokens": pieces,
        "total_tokens": audio_tokens + pieces,
        "input_token_details": {"text_tokens": 0, "audio_tokens": audio_tokens},
    }
    if not transcript.text.strip():
        job.reason_without_text()
    yield event({"type": "transcript.text.done", "text": transcript.text.strip(), "usage": usage})


def _error_event(error: ApiError) -> bytes:
    return event({"type": "error", "error": error.fields})
