"""GET /v1/models: the bundles and their further names, in a form that clients of several services parse."""

from fastapi import APIRouter

from voxport.bundle.json_types import Json
from voxport.runtime.serve.aliases import SPEECH_MODELS, TRANSCRIPTION_MODELS
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.models import Models, Worker
from voxport.runtime.serve.speech.worker import SpeechWorker


def listing_router(models: Models) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    async def list_models() -> Json:
        standard = SPEECH_MODELS * bool(models.speech_workers)
        standard += TRANSCRIPTION_MODELS * bool(models.transcription_workers)
        names = dict.fromkeys((*models.names, *models.aliases.models, *standard))
        return {"object": "list", "data": [_entry(name, _worker(name, models)) for name in names]}

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Json:
        worker = _worker(name, models)
        entry = _entry(name, worker)
        if isinstance(worker, SpeechWorker):
            stored = models.voices.of(worker.name) if models.voices else ()
            names = [*worker.task.bundle_voices(), *(voice.id for voice in stored)]
            entry["voices"] = [{"name": each} for each in names]
        return entry

    return router


def _worker(name: str, models: Models) -> Worker:
    """Raises ApiError."""
    try:
        return models.speech_worker(name)
    except ApiError:
        return models.transcription_worker(name)


def _entry(name: str, worker: Worker) -> Json:
    """`alias_of` is the bundle, if the name is another one."""
    speaks = isinstance(worker, SpeechWorker)
    return {
        "id": name,
        "object": "model",
        "created": worker.opened_at,
        "owned_by": "voxport",
        "type": "base",
        "task": "text-to-speech" if speaks else "automatic-speech-recognition",
        "capabilities": {"audio_speech": speaks, "audio_transcription": not speaks},
        **({} if name == worker.name else {"alias_of": worker.name}),
    }
