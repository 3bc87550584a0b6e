"""POST /v1/audio/speech."""

from collections.abc import Callable
from contextlib import ExitStack

from fastapi import APIRouter, Request
from fastapi.responses import Response

from voxport.runtime.serve.fields import SpeechBody, as_header, check_length, ignored_headers, parse_json
from voxport.runtime.serve.http.responses import StreamedResponse, with_body_limits
from voxport.runtime.serve.limits import MIB
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.answers import (
    encoded,
    error_event,
    is_of_mistral,
    mistral_events,
    mistral_json,
    openai_events,
)
from voxport.runtime.serve.speech.encoders import Encoder
from voxport.runtime.serve.speech.job import SpeechJob
from voxport.runtime.serve.speech.settings import settings_of

VOICE_HEADER = "x-voxport-voice"  # says who speaks
SEED_HEADER = "x-voxport-seed"
SILENCE_HEADER, NO_WORDS = "x-voxport-silence", "no words"


def body_bytes(models: Models) -> int:
    """Largest size of the JSON of a request. A recording in it needs more."""
    clones = any(worker.clones for worker in models.speech_workers.values())
    return models.limits.body_kib * 1024 + clones * models.limits.reference_mib * MIB


def speech_router(models: Models) -> APIRouter:
    router, limits, size = APIRouter(), models.limits, body_bytes(models)

    @router.post("/v1/audio/speech")
    async def speech(request: Request) -> Response:
        limited = with_body_limits(request, size, "body", limits.body_s)
        body = parse_json(SpeechBody, await limited.body(), models.is_strict)
        check_length(len(body.input), limits.text_characters, "input")
        is_mistral = is_of_mistral(body, request.headers)
        if body.stream and not is_mistral:
            body.ignore("stream")
        with ExitStack() as stack:
            settings = await settings_of(body, models, stack)
            settings.options["max_frames"] = body.max_frames
            encoder = settings.encoder(is_mistral)  # it may fail, so it is made before there is a job
            job = await settings.submit(body.input)
            stack.callback(job.cancel)
            response = _response(job, encoder, body, is_mistral, stack.pop_all().close)
        response.headers.update(ignored_headers(body, request.headers.get("user-agent", "")))
        response.headers[SEED_HEADER] = str(body.seed)
        if settings.voice.name is not None:
            response.headers[VOICE_HEADER] = as_header(settings.voice.name)
        if job.is_wordless:
            response.headers[SILENCE_HEADER] = NO_WORDS
        return response

    return router


def _response(
    job: SpeechJob, encoder: Encoder, body: SpeechBody, is_mistral: bool, close: Callable[[], None]
) -> StreamedResponse:
    """`close` is called in the end."""
    pieces = encoded(job, encoder)
    if body.stream if is_mistral else body.stream_format == "sse":
        events = (mistral_events if is_mistral else openai_events)(pieces, job, body)
        return StreamedResponse(events, "text/event-stream", close, error_event)
    if is_mistral:
        return StreamedResponse(mistral_json(pieces), "application/json", close)
    return StreamedResponse(pieces, encoder.media_type, close)
