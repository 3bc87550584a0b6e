"""GET, POST and DELETE /v1/audio/voices."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.datastructures import FormData

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError, from_exception, overloaded
from voxport.runtime.serve.http.responses import CLIENT_LEFT, ClientLeft, while_connected, with_body_limits
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
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.voices.store import StoredVoice, VoiceStore

FILE = "audio_sample"
MAX_WAITING = 4  # uploads, while a voice is made


class VoiceBody(BaseModel):
    """The fields of a request besides the recording. The consent of a speaker is not looked up."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Annotated[str, Field(min_length=1, max_length=100)]
    model: str | None = None
    transcript: str | None = None
    type: Literal["audio_sample"] = "audio_sample"
    consent: str | None = None

    @field_validator("name", mode="before")
    @classmethod
    def _is_printable(cls, name: str) -> str:
        if not name.isprintable():
            raise ValueError("expected printable characters")
        return name.strip()


@dataclass(frozen=True)
class VoiceRequest:
    """What a voice is made with, besides the recording."""

    worker: SpeechWorker
    name: str
    transcript: str | None


class VoiceMaker:
    """Makes one voice at a time, because the encoder of a recording uses the engine of all texts."""

    def __init__(self, store: VoiceStore):
        self._store, self._lock, self._waiting = store, asyncio.Lock(), 0

    async def make(self, request: VoiceRequest, recording: Path) -> StoredVoice:
        """Raises ApiError."""
        if self._waiting >= MAX_WAITING:
            raise overloaded(f"{self._waiting} recordings wait for their voices; try again later", 10)
        self._waiting += 1
        try:
            async with self._lock:
                return await self._finish(
                    asyncio.create_task(in_upload_thread(self._make, request, recording))
                )
        finally:
            self._waiting -= 1

    async def _finish(self, making: "asyncio.Task[StoredVoice]") -> StoredVoice:
        """A thread cannot be stopped. If the client leaves, the voice is deleted when it is made."""
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait((making,))
            if not making.exception():
                await asyncio.to_thread(self._store.delete, making.result().id)
            raise

    def _make(self, request: VoiceRequest, recording: Path) -> StoredVoice:
        request.worker.check_open()
        with path_hidden(recording, FILE):
            try:
                content = request.worker.task.make_voice(recording, request.transcript)
            except UsageError as error:
                if error.field == "transcript":
                    raise from_exception(error) from None
                raise
        return self._store.add(request.worker.name, request.name, content)


def voice_router(models: Models, limits: Limits) -> APIRouter:
    router, store = APIRouter(), models.voices
    maker = VoiceMaker(store) if store else None

    @router.get("/v1/audio/voices")
    async def list_voices(model: str | None = None) -> Json:
        workers = models.speech_workers.values() if model is None else [models.speech_worker(model)]
        voices = []
        for each in workers:
            names = each.task.bundle_voices()
            voices += [{"id": name, "name": name, "model": each.name} for name in names]
            voices += [_list_entry(voice) for voice in (store.of(each.name) if store else ())]
        return {"object": "list", "voices": voices, "data": voices}

    @router.post("/v1/audio/voices", openapi_extra=form_schema(VoiceBody, FILE))
    async def make_voice(request: Request) -> Response:
        if maker is None or store is None:
            raise _not_stored()
        store.check_room()
        form, upload = await read_form(
            with_body_limits(request, limits.upload_mib * MIB, "upload", limits.body_s), FILE
        )
        voice_request = _parse(form, models, limits)
        async with stored_upload(upload, FILE) as path:
            try:
                voice = await while_connected(request.receive, maker.make(voice_request, path))
            except ClientLeft:
                return Response(status_code=CLIENT_LEFT)  # is not sent
        return JSONResponse(_created_response(voice))

    @router.delete("/v1/audio/voices/{voice}")
    async def delete_voice(voice: str) -> Json:
        if store is None:
            raise _not_stored()
        await asyncio.to_thread(store.delete, voice)
        return {"id": voice, "object": "audio.voice.deleted", "deleted": True}

    return router


def _not_stored() -> ApiError:
    return ApiError(
        403, "this server stores no voices; its option --voices names a folder for them", "voices_not_stored"
    )


def _parse(form: FormData, models: Models, limits: Limits) -> VoiceRequest:
    """Raises ApiError that names the field."""
    body = parse_form(form, VoiceBody)
    transcript = body.transcript
    if transcript is not None and len(transcript) > limits.text_characters:
        reason = f"transcript: has {len(transcript)} characters, expected at most {limits.text_characters}"
        raise ApiError(400, reason, "string_above_max_length", "transcript")
    return VoiceRequest(_worker(body.model, models), body.name, transcript)


def _worker(model: str | None, models: Models) -> SpeechWorker:
    """The bundle of a request; without a name the first that can clone. Raises ApiError."""
    workers = [models.speech_worker(model)] if model is not None else list(models.speech_workers.values())
    for worker in workers:
        try:
            worker.task.check_cloning()
        except UsageError:
            continue
        return worker
    reason = "no bundle of this server makes" if model is None else f"{model} does not make"
    raise ApiError(400, f"model: {reason} voices from recordings", "voices_not_supported", "model")


def _list_entry(voice: StoredVoice) -> Json:
    return {"id": voice.id, "name": voice.name, "model": voice.model, "created_at": voice.created_at}


def _created_response(voice: StoredVoice) -> Json:
    return {"object": "audio.voice", "type": FILE, **_list_entry(voice)}
