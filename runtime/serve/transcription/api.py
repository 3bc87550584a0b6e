"""POST /v1/audio/transcriptions."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.runtime.audio.captions import Word, as_srt, as_vtt, cues, timed_fields
from voxport.runtime.audio.gain import amplified, recording_gain_db
from voxport.runtime.audio.sources import Recording
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.http.responses import (
    CLIENT_LEFT,
    ClientLeft,
    StreamedResponse,
    while_connected,
    with_body_limits,
)
from voxport.runtime.serve.http.uploads import (
    form_schema,
    in_upload_thread,
    parse_form,
    path_hidden,
    read_form,
    stored_upload,
)
from voxport.runtime.serve.limits import MIB, Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.api import event
from voxport.runtime.serve.transcription.job import TranscriptionJob

UNKNOWN_LANGUAGE = "unknown"  # the model detects it, and does not say which one it is
NO_TEXT_HEADER = "x-no-text"  # holds the reason, in a response without text


class TranscriptionBody(BaseModel):
    """The fields of a request besides the recording. `delay_ms` extends the OpenAI API."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)
    model: str
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    granularities: tuple[Literal["word", "segment"], ...] = Field((), alias="timestamp_granularities[]")
    stream: bool = False
    delay_ms: Annotated[int, Field(ge=0, lt=10**6)] | None = None
    language: str = ""
    temperature: Annotated[float, Field(ge=0, le=0)] = 0  # the likeliest text is taken
    prompt: Annotated[str, Field(max_length=0)] = ""  # the models take none


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
        "/v1/audio/transcriptions",
        response_class=Response,
        openapi_extra=form_schema(TranscriptionBody, "file"),
    )
    async def transcribe(request: Request) -> Response:
        body = with_body_limits(request, limits.upload_mib * MIB, "upload", limits.body_s)
        form, upload = await read_form(body, "file")
        options = parse_form(form, TranscriptionBody)
        _check_combination(options)
        worker = models.transcription_worker(options.model)
        worker.check_language(options.language or None)
        key = request.scope["voxport"]["key"]
        worker.check_room(key, options.delay_ms)  # before the recording is stored and read
        try:
            found = await while_connected(request.receive, _open(upload, worker.task.sample_rate, limits))
        except ClientLeft:
            return Response(status_code=CLIENT_LEFT)  # nobody receives it
        job = worker.submit(key, options.delay_ms, found.length_s)
        feeding = asyncio.create_task(_feed(job, found, limits))
        end = _end_function(job, feeding)
        if options.stream:
            return StreamedResponse(_events(job), "text/event-stream", end, _error_event)
        languages = worker.task.languages
        language = options.language or (languages[0] if len(languages) == 1 else UNKNOWN_LANGUAGE)
        return await _whole_response(request, job, options.model_copy(update={"language": language}), end)

    return router


def _check_combination(body: TranscriptionBody) -> None:
    """Refuses fields that would have no effect. Raises ApiError."""
    if body.stream and body.response_format != "json":
        reason = "response_format: expected json with stream; its events have no other format"
        raise ApiError(400, reason, "invalid_value", "response_format")
    if body.granularities and (body.stream or body.response_format != "verbose_json"):
        needed = "a request without stream" if body.stream else "response_format verbose_json"
        reason = f"timestamp_granularities[]: needs {needed}"
        raise ApiError(400, reason, "invalid_value", "timestamp_granularities")


@dataclass(frozen=True)
class OpenRecording:
    """Blocks float32 [n] of an upload. `path` was its name. `length_s` is None if the header has none."""

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
    request: Request, job: TranscriptionJob, options: TranscriptionBody, end: Callable[[], None]
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


def _formatted(transcript: Transcript, options: TranscriptionBody, seconds: float) -> Response:
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
    if "segment" in (options.granularities or ("segment",)):
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
