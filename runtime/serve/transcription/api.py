"""POST /v1/audio/transcriptions."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.datastructures import UploadFile

from voxport.runtime.audio.gain import amplified, recording_gain_db
from voxport.runtime.audio.sources import Recording
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import TranscriptionBody, ignored_headers, parse_form
from voxport.runtime.serve.http.responses import ClientLeft, StreamedResponse, while_connected
from voxport.runtime.serve.http.uploads import (
    in_upload_thread,
    path_hidden,
    read_form,
    stored_upload,
    upload_of,
)
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.answers import event
from voxport.runtime.serve.transcription.answers import Answer
from voxport.runtime.serve.transcription.job import TranscriptionJob
from voxport.runtime.serve.transcription.worker import TranscriptionWorker

NO_TEXT_HEADER = "x-no-text"  # holds the reason, in a response without text


def transcription_router(models: Models) -> APIRouter:
    router, limits = APIRouter(), models.limits

    @router.post("/v1/audio/transcriptions")
    async def transcribe(request: Request) -> Response:
        form = await read_form(request, "file", limits)
        body = parse_form(TranscriptionBody, form, models.is_strict)
        upload = upload_of(form, "file")
        _check_combination(body)
        worker = models.transcription_worker(body.model)
        language = _language(body, worker)
        worker.check_delay(body.delay_ms)
        worker.check_room()  # before the recording is stored and read
        found = await while_connected(request.receive, _open(upload, worker.task.sample_rate, limits))
        job = worker.submit(body.delay_ms)
        feeding = asyncio.create_task(_feed(job, found, limits))

        def end() -> None:
            feeding.cancel()
            job.cancel()

        answer = Answer(job, body, worker.name, language)
        headers = ignored_headers(body, request.headers.get("user-agent", ""))
        if body.stream:
            streamed = StreamedResponse(answer.events(), "text/event-stream", end, _error_event)
            streamed.headers.update(headers)
            return streamed
        try:
            await while_connected(request.receive, _read_all(job))
        finally:
            end()
        response = answer.response()
        response.headers.update(headers)
        if not job.transcript:
            response.headers[NO_TEXT_HEADER] = job.reason_without_text
        return response

    @router.post("/v1/audio/translations")
    async def translate() -> None:
        reason = "the models do not translate; POST /v1/audio/transcriptions gives the text as it is spoken"
        raise ApiError(400, f"translations: {reason}", "unsupported_value")

    return router


def _language(body: TranscriptionBody, worker: TranscriptionWorker) -> str | None:
    """The code of the language of the recording, if it is known."""
    languages = worker.task.languages
    if body.is_taken("language", lambda: worker.check_language(body.language)):
        found = worker.check_language(body.language)
    else:
        found = None
    return languages[0] if found is None and len(languages) == 1 else found


def _check_combination(body: TranscriptionBody) -> None:
    """Raises ApiError."""
    if body.stream and body.response_format != "json":
        reason = "response_format: expected json with stream; its events have no other format"
        raise ApiError(400, reason, "invalid_value", "response_format")
    has_segments = body.response_format in ("json", "verbose_json") and (body.is_mistral or not body.stream)
    if body.timestamp_granularities and not has_segments:
        needed = "needs response_format json or verbose_json, without stream"
        body.ignore("timestamp_granularities", needed, "invalid_value")


@dataclass(frozen=True)
class OpenRecording:
    """Blocks float32 [n] of an upload. `path` was its name."""

    path: Path
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
    recording.check_whole()
    blocks = amplified(recording.blocks(), gain, is_auto=True) if gain else recording.blocks()
    return OpenRecording(path, blocks)


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


async def _read_all(job: TranscriptionJob) -> None:
    while await job.read() is not None:
        pass


def _error_event(error: ApiError) -> bytes:
    return event({"type": "error", "error": error.fields})
