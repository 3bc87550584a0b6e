"""POST /v1/audio/speech, with the answers that clients of OpenAI and of Mistral expect."""

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack

from fastapi import APIRouter, Request
from fastapi.responses import Response

from voxport.bundle.json_types import Json
from voxport.runtime.serve.aliases import is_one_of
from voxport.runtime.serve.fields import (
    SpeechBody,
    SpeechFields,
    check_length,
    parse_json,
)
from voxport.runtime.serve.http.responses import StreamedResponse, event, with_body_limits
from voxport.runtime.serve.ignored import as_header, ignored_headers
from voxport.runtime.serve.limits import MIB
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.encoders import Encoder
from voxport.runtime.serve.speech.job import SpeechJob
from voxport.runtime.serve.speech.settings import settings_of

VOICE_HEADER = "x-voxport-voice"  # says who speaks
SEED_HEADER = "x-voxport-seed"
MISTRAL_MODELS = ("voxtral-mini-tts-latest",)
MISTRAL_TYPES = {"application/json", "text/event-stream"}  # that its clients accept
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
        body.ignore_all(request.query_params)
        check_length(len(body.input), limits.text_characters, "input")
        is_mistral = is_of_mistral(body, request.headers)
        if body.stream and not is_mistral:
            body.ignore("stream")
        with ExitStack() as stack:
            settings = await settings_of(body, models, stack)
            settings.options["max_frames"] = body.max_frames
            encoder = settings.encoder(is_mistral)  # it may fail, so it is made before there is a job
            stack.callback(encoder.close)
            job = await settings.submit(body.input)
            stack.callback(job.cancel)
            response = _response(job, encoder, body, is_mistral, stack.pop_all().close)
        response.headers.update(ignored_headers(body.ignored, request.headers.get("user-agent", "")))
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
        events = _events(pieces, job, body, is_mistral)
        return StreamedResponse(events, "text/event-stream", close, "speech.audio.error")
    if is_mistral:
        return StreamedResponse(_mistral_json(pieces), "application/json", close)
    return StreamedResponse(pieces, encoder.media_type, close)


def is_of_mistral(body: SpeechBody, headers: Mapping[str, str]) -> bool:
    """Whether a client expects the answers of Mistral's API.

    It has no `voice` and no `stream_format`, and one of these: a `voice_id`, `ref_audio` that is no URL,
    `stream` with the name of a model of Mistral, or it accepts JSON or events only.
    """
    accepted = {kind.partition(";")[0].strip() for kind in headers.get("accept", "").split(",")}
    is_bare = ":" not in (body.ref_audio or ":")
    names_model = "stream" in body.model_fields_set and is_one_of(body.model or "", MISTRAL_MODELS)
    is_marked = body.voice_id is not None or is_bare or names_model or accepted <= MISTRAL_TYPES
    return is_marked and not body.voice and "stream_format" not in body.model_fields_set


async def encoded(job: SpeechJob, encoder: Encoder) -> AsyncIterator[bytes]:
    """Pieces of the file. Raises ApiError."""
    while (block := await job.read()) is not None:
        if piece := await encoder.encode(block):
            yield piece
    if piece := await encoder.finish():
        yield piece


async def _events(
    pieces: AsyncIterator[bytes], job: SpeechJob, body: SpeechBody, is_mistral: bool
) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield event(speech_delta(piece, is_mistral))
    yield event(speech_done(job, len(body.input), body, is_mistral))


def speech_delta(piece: bytes, is_mistral: bool = True) -> Json:
    """The event of a piece of a file."""
    name = "audio_data" if is_mistral else "audio"
    return {"type": "speech.audio.delta", name: base64.b64encode(piece).decode()}


def speech_done(job: SpeechJob, characters: int, body: SpeechFields, is_mistral: bool = True) -> Json:
    """The last event of a text."""
    read, made = ("prompt", "completion") if is_mistral else ("input", "output")
    usage = {f"{read}_tokens": characters, f"{made}_tokens": job.frames}
    usage["total_tokens"] = sum(usage.values())
    return {"type": "speech.audio.done", "usage": usage, "ended": job.status, "seed": body.seed}


async def _mistral_json(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """An object with the file in base64."""
    content = b"".join([piece async for piece in pieces])
    yield json.dumps({"audio_data": base64.b64encode(content).decode()}).encode()
