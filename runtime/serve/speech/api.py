"""POST /v1/audio/speech."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from voxport.bundle.errors import UsageError
from voxport.bundle.names import find_name
from voxport.runtime.serve.errors import ApiError, from_exception
from voxport.runtime.serve.fields import SpeechBody, SpeechFields, check_length, ignored_headers, parse_json
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
from voxport.runtime.serve.speech.encoders import Encoder, make_encoder
from voxport.runtime.serve.speech.job import SpeechJob
from voxport.runtime.serve.speech.reference import can_clone, reference_voice
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.voices.store import VoiceStore
from voxport.runtime.speech_request import SpeechOptions

PARAMS = {"text": "input", "instruct": "instructions"}  # our names of fields that the API names otherwise
CHUNK_FRAMES = 1  # 80 ms each: the first samples come after one frame


def choose_voice(name: str | None, worker: SpeechWorker, store: VoiceStore | None) -> str | None:
    """A voice of the bundle by name, or the path of a stored one. Raises ApiError on any other name.

    Voices of the operator are not among them.
    """
    if name is None:
        return worker.default_voice()
    if store and (path := store.path(worker.name, name)):
        return str(path)
    voices = worker.task.bundle_voices()
    name = find_name(name, voices)
    if name not in voices:
        stored = [voice.id for voice in store.of(worker.name)] if store else []
        names = ", ".join([*sorted(voices), *stored]) or "none"
        raise ApiError(400, f"voice: expected one of {names}", "voice_not_found", "voice")
    return name


def body_bytes(models: Models) -> int:
    """Largest size of the JSON of a request. A recording in it needs more."""
    clones = any(map(can_clone, models.speech_workers.values()))
    return models.limits.body_kib * 1024 + clones * models.limits.reference_mib * MIB


def speech_router(models: Models) -> APIRouter:
    router, limits, size = APIRouter(), models.limits, body_bytes(models)

    @router.post("/v1/audio/speech")
    async def speech(request: Request) -> Response:
        limited = with_body_limits(request, size, "body", limits.body_s)
        body = parse_json(SpeechBody, await limited.body(), models.is_strict)
        worker = models.speech_worker(body.model)
        check_length(len(body.input), limits.text_characters, "input")
        is_mistral = is_of_mistral(body, request.headers)
        if body.stream and not is_mistral:
            body.ignore("stream")
        worker.check_room()  # before any other work
        with ExitStack() as stack:
            # an encoder may fail, so it is made before there is a job
            encoder = encoder_of(body, worker, is_mistral)
            options = await speech_options(body, worker, models.voices, stack)
            options["max_frames"] = body.max_frames
            job = await submit(worker, body.input, options, body)
            stack.callback(job.cancel)
            close = stack.pop_all().close
        response = _response(job, encoder, body, is_mistral, close)
        response.headers.update(ignored_headers(body, request.headers.get("user-agent", "")))
        response.headers["x-voxport-seed"] = str(body.seed)
        if job.is_wordless:
            response.headers["x-voxport-silence"] = "no words"
        return response

    return router


def _response(
    job: SpeechJob, encoder: Encoder, body: SpeechBody, is_mistral: bool, close: Callable[[], None]
) -> StreamedResponse:
    pieces = encoded(job, encoder)
    if body.stream if is_mistral else body.stream_format == "sse":
        events = (mistral_events if is_mistral else openai_events)(pieces, job, body)
        return StreamedResponse(events, "text/event-stream", close, error_event)
    if is_mistral:
        return StreamedResponse(mistral_json(pieces), "application/json", close)
    return StreamedResponse(pieces, encoder.media_type, close)


def encoder_of(body: SpeechFields, worker: SpeechWorker, is_mistral: bool) -> Encoder:
    """Raises ApiError."""
    try:
        return make_encoder(body.response_format, worker.task.sample_rate, body.speed, is_mistral)
    except UsageError as error:
        raise from_exception(error) from None


async def speech_options(
    body: SpeechFields, worker: SpeechWorker, store: VoiceStore | None, stack: ExitStack
) -> SpeechOptions:
    """The options of a text. `stack` deletes the voice that is made for it. Raises ApiError."""
    if body.instructions and not worker.task.follows_instructions:
        body.ignore("instructions", "the model follows none; leave them out", "invalid_value")
    if body.ref_audio:
        voice = await reference_voice(body, worker, stack)
    else:
        voice = choose_voice(body.voice_name, worker, store)
    return {
        "seed": body.seed,
        "chunk_frames": CHUNK_FRAMES,
        "voice": voice,
        "language": body.language,
        "instruct": body.instructions if worker.task.follows_instructions else None,
        # a voice of a client may be deleted
        "store_prefix": not body.ref_audio and body.voice_name in (None, voice),
    }


async def submit(
    worker: SpeechWorker,
    text: str | Iterable[str],
    options: SpeechOptions,
    body: SpeechFields,
    threads: Executor | None = None,
) -> SpeechJob:
    """Queues a text with the options that `speech_options` made of `body`. Raises ApiError.

    `threads` as in `SpeechWorker.prepare`.
    """
    loop, prepare = asyncio.get_running_loop(), partial(worker.prepare, text, options, threads)
    try:
        return worker.submit(await loop.run_in_executor(threads, prepare))
    except UsageError as raised:
        # no path of a stored voice
        message = str(raised).replace(options["voice"] or "\0", body.voice_name or "ref_audio")
        field = raised.field or "input"
        name = PARAMS.get(field, field)
        if field in PARAMS:
            rest = message.removeprefix(field)
            message = f"{name}{rest}" if rest != message else f"{name}: {message}"
        raise ApiError(400, message, "invalid_value", name) from None
