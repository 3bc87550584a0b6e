"""POST /v1/audio/transcriptions. Answers are those of OpenAI, with what clients of Mistral read."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.datastructures import UploadFile

from voxport.bundle.json_types import Json
from voxport.runtime.audio.captions import Word, as_srt, as_vtt, cues, timed_fields
from voxport.runtime.audio.gain import amplified, recording_gain_db
from voxport.runtime.audio.sources import Recording
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import UNSUPPORTED, TranscriptionBody, parse_form
from voxport.runtime.serve.http.responses import ClientLeft, StreamedResponse, event, while_connected
from voxport.runtime.serve.http.uploads import (
    in_upload_thread,
    path_hidden,
    read_form,
    stored_upload,
    upload_of,
)
from voxport.runtime.serve.ignored import ignored_headers
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.transcription.job import TranscriptionJob
from voxport.runtime.serve.transcription.worker import TranscriptionWorker

TIMED = ("srt", "vtt", "verbose_json")  # formats with times
NO_TEXT_HEADER = "x-no-text"  # holds the reason, in a response without text
# Fields of a segment that clients of Whisper read, which the models do not measure
NOT_MEASURED = dict.fromkeys(("temperature", "avg_logprob", "compression_ratio", "no_speech_prob"), 0.0)


def transcription_router(models: Models) -> APIRouter:
    router, limits = APIRouter(), models.limits

    @router.post("/v1/audio/transcriptions")
    async def transcribe(request: Request) -> Response:
        form = await read_form(request, "file", limits)
        body = parse_form(TranscriptionBody, form, models.is_strict)
        body.ignore_all(request.query_params)
        upload = upload_of(form, "file")
        _check_combination(body)
        worker = models.transcription_worker(body.model)
        _check_times(body, worker)
        language = _language(body, worker)
        worker.check_delay(body.delay_ms)
        for name in ("prompt", "keywords"):
            if getattr(body, name) and not worker.task.has_hints:
                body.ignore(name)
        worker.check_room()  # before the recording is stored and read
        found = await while_connected(request.receive, _open(upload, worker.task.sample_rate, limits))
        has_times = bool(body.timestamp_granularities) or body.response_format in TIMED
        job = worker.submit(delay_ms=body.delay_ms, language=language, context=body.context, words=has_times)
        feeding = asyncio.create_task(_feed(job, found, limits))

        def end() -> None:
            feeding.cancel()
            job.cancel()

        answer = Answer(job, body, worker, language)
        headers = ignored_headers(body.ignored, request.headers.get("user-agent", ""))
        if body.stream:
            streamed = StreamedResponse(answer.events(), "text/event-stream", end, "error")
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

    return router


def _language(body: TranscriptionBody, worker: TranscriptionWorker) -> str | None:
    """The code of the language of the recording, if it is known."""
    languages, name, given = worker.task.languages, "language", body.language
    if given is None and len(body.languages) == 1:
        name, given = "languages", body.languages[0]
    elif body.languages:
        body.ignore("languages", "give one, or none and the model detects which one it is")
    check = partial(worker.check_language, given, name)
    found = check() if body.is_taken(name, check) else None
    return languages[0] if found is None and len(languages) == 1 else found


def _check_combination(body: TranscriptionBody) -> None:
    """Raises ApiError."""
    if body.stream and body.response_format != "json":
        reason = "response_format: expected json with stream; its events have no other format"
        raise ApiError(400, reason, "invalid_value", "response_format")
    if body.timestamp_granularities and body.response_format not in ("json", "verbose_json"):
        needed = "needs response_format json or verbose_json"
        body.ignore("timestamp_granularities", needed, "invalid_value")


def _check_times(body: TranscriptionBody, worker: TranscriptionWorker) -> None:
    """Raises ApiError if captions are wanted of a model that has no times of words."""
    if worker.task.has_word_times:
        return
    reason = f"{worker.name} has no times of words"
    if body.response_format in ("srt", "vtt"):
        raise ApiError(
            400, f"response_format: {reason}; expected json or text", UNSUPPORTED, "response_format"
        )
    if body.timestamp_granularities:
        body.ignore("timestamp_granularities", reason, UNSUPPORTED)


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


class Answer:
    """The text of a job in the form that a request asks for.

    `language` is an ISO 639 code, or None if it is not known.
    """

    def __init__(
        self,
        job: TranscriptionJob,
        body: TranscriptionBody,
        worker: TranscriptionWorker,
        language: str | None,
    ):
        self._job, self._body, self._language = job, body, language
        self._model, self._task = worker.name, worker.task

    def response(self) -> Response:
        """The answer, once the job has ended."""
        job = self._job
        match self._body.response_format:
            case "text":
                return PlainTextResponse(f"{job.transcript}\n")
            case "srt":
                return PlainTextResponse(as_srt(job.words, job.seconds))
            case "vtt":
                return PlainTextResponse(as_vtt(job.words, job.seconds), media_type="text/vtt")
            case "json":
                return JSONResponse(self._content() | self._captions())
        wanted = self._body.timestamp_granularities or ("segment",)
        content = self._content() | {"task": "transcribe", "duration": round(job.seconds, 3)}
        if "word" in wanted:
            content["words"] = [timed_fields(word) for word in job.words]
        if "segment" in wanted:
            whole = [Word(job.transcript, 0.0, job.seconds)] if job.transcript else []
            content["segments"] = self._segments(cues(job.words) if job.words else whole)
        return JSONResponse(content)

    def _content(self) -> Json:
        seconds = self._job.seconds
        usage = {
            "type": "duration",
            "seconds": round(seconds, 3),
            "prompt_audio_seconds": round(seconds),
            **self._tokens("prompt_tokens", "completion_tokens"),
        }
        return {
            "text": self._job.transcript,
            "model": self._model,
            "language": self._language or self._job.language or None,
            "usage": usage,
        }

    def _captions(self) -> Json:
        """The segments of Mistral's API, which are words or captions, if a request wants them."""
        wanted, words = self._body.timestamp_granularities, self._job.words
        return {"segments": self._segments(words if "word" in wanted else cues(words))} if wanted else {}

    def _segments(self, texts: Iterable[Word]) -> list[Json]:
        return [
            {
                "id": index,
                "type": "transcription_segment",
                **timed_fields(each, "text"),
                "seek": 0,
                "tokens": [],
                **NOT_MEASURED,
            }
            for index, each in enumerate(texts)
        ]

    def _tokens(self, heard: str, written: str) -> Json:
        """Numbers of tokens by the names of a dialect."""
        audio, text = self._task.count_tokens(self._job.transcript, self._job.seconds)
        return {heard: audio, written: text, "total_tokens": audio + text}

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events while the job runs."""
        kind, name = "transcript.text", "delta"
        if self._body.is_mistral:
            kind, name = "transcription.text", "text"
        while (delta := await self._job.read()) is not None:
            words = [timed_fields(word) for word in delta.words]  # extends both APIs
            yield event({"type": f"{kind}.delta", name: delta.text, "words": words})
        if self._body.is_mistral:
            captions = self._captions()
            for segment in captions.get("segments", ()):
                yield event({**segment, "type": "transcription.segment"})
            yield event({"type": "transcription.done", **self._content(), **captions})
            return
        tokens = self._tokens("input_tokens", "output_tokens")
        details = {"text_tokens": 0, "audio_tokens": tokens["input_tokens"]}
        usage = {"type": "tokens", **tokens, "input_token_details": details}
        language = self._language or self._job.language or None
        own: Json = {"duration": round(self._job.seconds, 3), "language": language}  # extends the API
        if not self._job.transcript:
            own["reason"] = self._job.reason_without_text
        yield event({"type": "transcript.text.done", "text": self._job.transcript, "usage": usage, **own})
