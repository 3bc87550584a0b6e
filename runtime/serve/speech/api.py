"""POST /v1/audio/speech."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import Response

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.runtime.serve.aliases import ChosenVoice
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import SpeechBody, as_header, check_length, ignored_headers, parse_json
from voxport.runtime.serve.http.responses import StreamedResponse, with_body_limits
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.encoders import ENCODERS, Encoder
from voxport.runtime.serve.speech.job import SpeechJob
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.speech_request import SpeechOptions
from voxport.runtime.text_to_speech import TextToSpeech

EVENT_FORMATS = ("pcm", "wav")  # whose pieces can be joined by a client
PARAMS = {"text": "input", "instruct": "instructions"}  # our names of fields that the API names otherwise
VOICE_HEADER = "x-voxport-voice"  # says who speaks
CHUNK_FRAMES = 1  # 80 ms each: the first samples come after one frame


def check_body(body: SpeechBody, limits: Limits, task: TextToSpeech) -> None:
    """Refuses what this server or the model does not do. Raises ApiError."""
    check_length(len(body.input), limits.text_characters, "input")
    if body.stream_format == "sse" and body.response_format not in EVENT_FORMATS:
        reason = "response_format: expected pcm or wav with stream_format sse"
        raise ApiError(400, reason, "invalid_value", "response_format")
    if body.instructions and not task.follows_instructions:
        body.ignore("instructions", "the model follows none; leave them out", "invalid_value")


def speech_router(models: Models) -> APIRouter:
    router, limits = APIRouter(), models.limits

    @router.post("/v1/audio/speech")
    async def speech(request: Request) -> Response:
        limited = with_body_limits(request, limits.body_kib * 1024, "body", limits.body_s)
        body = parse_json(SpeechBody, await limited.body(), models.is_strict)
        worker = models.speech_worker(body.model)
        check_body(body, limits, worker.task)
        worker.check_room()  # before any other work
        voice = models.aliases.voice(body.voice_name, worker, models.voices)
        if body.voice_name and voice.name is None:
            body.ignore("voice", "the model has no voices; describe one in instructions", "invalid_value")
        # an encoder may fail, so it is made before there is a job
        encoder = ENCODERS[body.response_format](worker.task.sample_rate)
        job = await submit(worker, body, voice)
        if body.stream_format == "sse":
            pieces = _events(job, encoder, len(body.input))
            response = StreamedResponse(pieces, "text/event-stream", job.cancel, _error_event)
        else:
            response = StreamedResponse(_pieces(job, encoder), encoder.media_type, job.cancel)
        response.headers.update(ignored_headers(body, request.headers.get("user-agent", "")))
        if voice.name is not None:
            response.headers[VOICE_HEADER] = as_header(voice.name)
        return response

    return router


async def submit(worker: SpeechWorker, body: SpeechBody, chosen: ChosenVoice) -> SpeechJob:
    """Queues a text. Raises ApiError."""
    follows, language = worker.task.follows_instructions, body.language
    if language is not None and not body.is_taken("language", lambda: worker.task.check_language(language)):
        language = None
    options: SpeechOptions = {
        "seed": body.seed,
        "chunk_frames": CHUNK_FRAMES,
        "max_frames": body.max_frames,
        "voice": chosen.voice,
        "language": language,
        "instruct": body.instructions if follows else None,
        "store_prefix": chosen.name == chosen.voice,  # a stored voice may be deleted
    }
    try:
        return worker.submit(await asyncio.to_thread(worker.prepare, body.input, options))
    except UsageError as raised:
        message = str(raised).replace(chosen.voice or "\0", chosen.name or "")  # no path of a stored voice
        field = raised.field or "input"
        name = PARAMS.get(field, field)
        if field in PARAMS:
            rest = message.removeprefix(field)
            message = f"{name}{rest}" if rest != message else f"{name}: {message}"
        raise ApiError(400, message, "invalid_value", name) from None


async def _pieces(job: SpeechJob, encoder: Encoder) -> AsyncIterator[bytes]:
    while (block := await job.read()) is not None:
        if piece := await encoder.encode(block):
            yield piece
    yield await encoder.finish()


async def _events(job: SpeechJob, encoder: Encoder, characters: int) -> AsyncIterator[bytes]:
    async for piece in _pieces(job, encoder):
        if piece:
            yield event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()})
    usage = {"input_tokens": characters, "output_tokens": job.frames, "total_tokens": characters + job.frames}
    yield event({"type": "speech.audio.done", "usage": usage, "ended": job.status})


def _error_event(error: ApiError) -> bytes:
    return event({"type": "speech.audio.error", "error": error.fields})


def event(content: Json) -> bytes:
    """One server-sent event."""
    return f"event: {content['type']}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n".encode()
