"""GET /v1/models: the bundles and their further names, in a form that clients of several services parse."""

from collections.abc import Mapping

from fastapi import APIRouter

from voxport.bundle.json_types import Json
from voxport.runtime.serve.aliases import SPEECH_MODELS, TRANSCRIPTION_MODELS, is_one_of
from voxport.runtime.serve.models import Models, Worker, not_found
from voxport.runtime.serve.speech.worker import SpeechWorker

SPEAKS, TRANSCRIBES = "text-to-speech", "automatic-speech-recognition"


def listing_router(models: Models) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    async def list_models() -> Json:
        aliases = [_entry(worker, alias) for alias, worker in _aliases(models).items()]
        return {"object": "list", "data": [*map(_entry, models.workers), *aliases]}

    @router.get("/v1/audio/models")
    async def list_speech_models() -> Json:
        """Open WebUI offers these models for speech."""
        return {"models": [_entry(worker) for worker in models.speech_workers.values()]}

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Json:
        worker = _find(name, models)
        if worker is None:
            raise not_found(f"no model {name[:100]!r}", models.names)
        entry = _entry(worker, None if name == worker.name else name)
        if isinstance(worker, SpeechWorker):
            language = worker.task.language
            voices = worker.task.bundle_voices()
            stored = models.voices.of(worker.name) if models.voices else ()
            entry["voices"] = [{"name": voice, "language": language(voice)} for voice in voices]
            entry["voices"] += [{"name": voice.id, "language": None} for voice in stored]
        return entry

    return router


def _entry(worker: Worker, alias: str | None = None) -> Json:
    """A model with the `id` of the bundle, or of an alias, whose `alias_of` is the bundle."""
    is_live = not isinstance(worker, SpeechWorker) and worker.live_slots > 0
    speaks = isinstance(worker, SpeechWorker)
    capabilities = {
        "audio_speech": speaks,
        "audio_transcription": not speaks,
        "audio_transcription_realtime": is_live,
    }
    return {
        "id": alias or worker.name,
        "object": "model",
        "created": worker.opened_at,
        "owned_by": "voxport",
        "type": "base",
        "task": SPEAKS if speaks else TRANSCRIBES,
        "capabilities": capabilities,
        **({"alias_of": worker.name} if alias else {}),
    }


def _aliases(models: Models) -> Mapping[str, Worker]:
    found: dict[str, Worker] = {}
    for alias in (*models.aliases.models, *SPEECH_MODELS, *TRANSCRIPTION_MODELS):
        if alias not in models.names and (worker := _find(alias, models)):
            found[alias] = worker
    return found


def _find(name: str, models: Models) -> Worker | None:
    bundle = models.bundle_of(name)
    if bundle is not None:
        return next(worker for worker in models.workers if worker.name == bundle)
    if is_one_of(name, SPEECH_MODELS):
        return next(iter(models.speech_workers.values()), None)
    if is_one_of(name, TRANSCRIPTION_MODELS):
        return next(iter(models.transcription_workers.values()), None)
    return None
