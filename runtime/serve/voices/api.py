"""GET, POST and DELETE /v1/audio/voices."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError, from_exception, overloaded
from voxport.runtime.serve.fields import (
    VoiceBody,
    VoicePage,
    check_length,
    parse_form,
    parse_message,
)
from voxport.runtime.serve.http.responses import while_connected
from voxport.runtime.serve.http.uploads import path_hidden, read_form, stored_upload, upload_of
from voxport.runtime.serve.ignored import ignored_headers
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.voices.store import StoredVoice, VoiceStore

FILE = "audio_sample"
MAX_WAITING = 4  # uploads, while a voice is made
NOT_STORED = "this server stores no voices; its option --voices names a folder for them"


class VoiceMaker:
    """Makes one voice at a time, because the encoder of a recording uses the engine of all texts."""

    def __init__(self) -> None:
        self._thread, self._waiting = ThreadPoolExecutor(1, "voices"), 0

    async def make(
        self, worker: SpeechWorker, recording: Path, transcript: str | None, field: str = FILE
    ) -> bytes:
        """The content of a voice file. Raises ApiError, which names `field` for the recording."""
        if self._waiting >= MAX_WAITING:
            raise overloaded(f"{self._waiting} recordings wait for their voices; try again later")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, _make, worker, recording, transcript, field)
        finally:
            self._waiting -= 1


def _make(worker: SpeechWorker, recording: Path, transcript: str | None, field: str) -> bytes:
    worker.check_open()
    with path_hidden(recording, field):
        try:
            return worker.task.make_voice(recording, transcript)
        except UsageError as error:
            if error.field == "transcript":
                raise from_exception(error) from None
            raise


MAKER = VoiceMaker()


def voice_router(models: Models) -> APIRouter:
    router, limits = APIRouter(), models.limits

    @router.get("/v1/audio/voices")
    async def list_voices(request: Request) -> Response:
        query = parse_message(VoicePage, dict(request.query_params), models.is_strict)
        workers = [models.speech_worker(query.model)] if query.model else models.speech_workers.values()
        found = [entry for worker in workers for entry in _entries(worker, models)]
        found = [entry for entry in found if query.type in ("all", entry["type"])]
        size = query.limit or max(1, len(found))
        page = found[query.offset : query.offset + size]
        paging = {"total": len(found), "page": query.offset // size + 1, "page_size": size}
        pages = {**paging, "total_pages": -(-len(found) // size)}
        times = [datetime.fromtimestamp(entry["created_at"], UTC).isoformat() for entry in page]
        items = [entry | {"created_at": time} for entry, time in zip(page, times, strict=True)]
        headers = ignored_headers(query.ignored, request.headers.get("user-agent", ""))
        content = {"object": "list", "voices": page, "data": page, "items": items, **pages}
        return JSONResponse(content, headers=headers)

    @router.post("/v1/audio/voices")
    async def make_voice(request: Request) -> Response:
        store = _store(models)
        store.check_room()
        form = await read_form(request, FILE, limits)
        body = parse_form(VoiceBody, form, models.is_strict)
        upload = upload_of(form, FILE)
        check_length(len(body.transcript or ""), limits.text_characters, "transcript")
        worker = _worker(body.model, models)
        async with stored_upload(upload, FILE) as path:
            making = MAKER.make(worker, path, body.transcript)
            content = await while_connected(request.receive, making)
        voice = await asyncio.to_thread(store.add, worker.name, body.name, content)
        headers = ignored_headers(body.ignored, request.headers.get("user-agent", ""))
        return JSONResponse({**_list_entry(voice), "object": "audio.voice", "type": FILE}, headers=headers)

    @router.delete("/v1/audio/voices/{voice}")
    async def delete_voice(voice: str) -> Json:
        await asyncio.to_thread(_store(models).delete, voice)
        return {"id": voice, "object": "audio.voice.deleted", "deleted": True}

    return router


def _store(models: Models) -> VoiceStore:
    """Raises ApiError."""
    if models.voices is None:
        raise ApiError(403, NOT_STORED, "voices_not_stored")
    return models.voices


def _worker(model: str | None, models: Models) -> SpeechWorker:
    """The bundle of a request; without a name the first that can clone. Raises ApiError."""
    workers = [models.speech_worker(model)] if model is not None else list(models.speech_workers.values())
    for worker in workers:
        if worker.clones:
            return worker
    reason = "no bundle of this server makes" if model is None else f"{model} does not make"
    raise ApiError(400, f"model: {reason} voices from recordings", "voices_not_supported", "model")


def _entries(worker: SpeechWorker, models: Models) -> list[Json]:
    """The voices of a bundle, those that clients made, and further names, whose `alias_of` is a voice."""
    found = [_preset(name, worker) for name in worker.task.bundle_voices()]
    found += [_list_entry(voice) for voice in (models.voices.of(worker.name) if models.voices else ())]
    aliases = models.aliases.of_voices(worker, models.voices)
    return found + [_preset(alias, worker) | {"alias_of": voice} for alias, voice in aliases.items()]


def _preset(name: str, worker: SpeechWorker) -> Json:
    return _entry(name, name, worker.name, worker.opened_at, "preset")


def _list_entry(voice: StoredVoice) -> Json:
    return _entry(voice.id, voice.name, voice.model, voice.created_at, "custom") | {"seconds": voice.seconds}


def _entry(id: str, name: str, model: str, created_at: int, type: str) -> Json:
    entry: Json = {"id": id, "name": name, "model": model, "created_at": created_at, "type": type}
    return entry | {"user_id": None, "slug": id, "languages": []}
