"""The ASGI application: routes, errors, access, and the page with its files."""

import logging
import re
from collections.abc import Collection, Iterable
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.runtime.serve.aliases import SPEECH_MODELS, TRANSCRIPTION_MODELS
from voxport.runtime.serve.errors import ApiError, from_exception
from voxport.runtime.serve.http.access import AccessMiddleware, CorsMiddleware, Keys
from voxport.runtime.serve.http.responses import ClientLeft
from voxport.runtime.serve.models import Models, Worker
from voxport.runtime.serve.realtime.routes import realtime_router
from voxport.runtime.serve.speech.api import speech_router
from voxport.runtime.serve.transcription.api import transcription_router
from voxport.runtime.serve.voices.api import voice_router

SPEAKS, TRANSCRIBES = "text-to-speech", "automatic-speech-recognition"  # tasks of models
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
INDEX = "index.html"
TYPES = {  # by the ends of names; other files are not served
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HOST = re.compile(r"[\w.:\[\]-]+", re.ASCII)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "cache-control": "no-cache",
}
POLICY = (
    "default-src 'self'",
    "media-src 'self' blob:",
    "object-src 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)


def build_app(
    models: Models, keys: Keys, origins: Collection[str] = (), hosts: Iterable[str] = ()
) -> ASGIApp:
    """The application. `models` are started; `origins` and `hosts` as in `AccessMiddleware`."""
    logging.getLogger("voxport.runtime.text").setLevel(logging.INFO)  # debug lines quote the text of a client
    app = FastAPI(title="voxport", docs_url=None, redoc_url=None)
    app.include_router(speech_router(models))
    app.include_router(transcription_router(models))
    app.include_router(voice_router(models))
    app.include_router(realtime_router(models))
    _add_listings(app, models)
    _add_probes(app, models)
    _add_page(app, models)
    app.router.default = _not_found

    for kind in (ApiError, UsageError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _answer)
    guarded = AccessMiddleware(app, keys, models.limits, models.metrics, origins, hosts)
    return CorsMiddleware(guarded, origins) if origins else guarded


async def _answer(request: HTTPConnection, raised: Exception) -> Response:
    if request.scope["type"] == "websocket":
        raise raised  # `AccessMiddleware` refuses the socket
    if isinstance(raised, ClientDisconnect):  # before the whole body arrived
        raised = ClientLeft()
    error = from_exception(raised)
    headers = raised.headers if isinstance(raised, HTTPException) else None
    return JSONResponse(error.body, error.status, {**(headers or {}), **error.headers})


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """An unknown path, also of a socket: the router would close a socket without an error."""
    hint = "GET /openapi.json lists the paths, and the base URL of most clients ends in /v1"
    raise ApiError(404, f"this server has no path {scope['path'][:200]}; {hint}", "not_found")


def _add_listings(app: FastAPI, models: Models) -> None:
    @app.get("/v1/models")
    async def list_models() -> Json:
        standard = SPEECH_MODELS * bool(models.speech_workers)
        standard += TRANSCRIPTION_MODELS * bool(models.transcription_workers)
        names = dict.fromkeys((*models.names, *models.aliases.models, *standard))
        return {"object": "list", "data": [_model(name, models) for name in names]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Json:
        entry = _model(name, models)
        if entry["task"] == SPEAKS:
            worker = models.speech_worker(name)
            stored = models.voices.of(worker.name) if models.voices else ()
            names = [*worker.task.bundle_voices(), *(voice.id for voice in stored)]
            entry["voices"] = [{"name": each} for each in names]
        return entry


def _model(name: str, models: Models) -> Json:
    """`alias_of` is the bundle, if the name is another one. Raises ApiError."""
    bundle = models.bundle_of(name) or ""
    if bundle in models.aligners:
        task, opened_at = "forced-alignment", models.aligners[bundle]
    else:
        try:
            worker: Worker = models.speech_worker(name)
            task = SPEAKS
        except ApiError:
            worker, task = models.transcription_worker(name), TRANSCRIBES
        bundle, opened_at = worker.name, worker.opened_at
    return {
        "id": name,
        "object": "model",
        "created": opened_at,
        "owned_by": "voxport",
        "type": "base",
        "task": task,
        "capabilities": {"audio_speech": task == SPEAKS, "audio_transcription": task == TRANSCRIBES},
        **({} if name == bundle else {"alias_of": bundle}),
    }


def _add_probes(app: FastAPI, models: Models) -> None:
    @app.get("/health")
    @app.get("/healthz")
    async def is_alive() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/readyz")
    async def is_ready() -> Response:
        return PlainTextResponse("ready\n") if models.is_ready else PlainTextResponse("not ready\n", 503)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return Response(generate_latest(models.metrics.registry), media_type=METRICS_TYPE)


def _add_page(app: FastAPI, models: Models) -> None:
    contents = _read_files()

    async def show(request: Request, name: str = INDEX) -> Response:
        if name not in contents:
            raise ApiError(404, f"the page has no file {name[:50]!r}", "not_found")
        content, media_type = contents[name]
        policy = _policy(request.headers.get("host", ""))
        headers = {**HEADERS, "content-security-policy": policy}
        return Response(content, media_type=media_type, headers=headers)

    for path in ("/", "/page/{name}"):
        app.add_api_route(path, show)

    @app.get("/v1/page")
    async def describe() -> Json:
        """What the page offers. Needs a key, because it names the models."""
        speaking = [
            {
                "id": worker.name,
                "sample_rate": worker.task.sample_rate,
                "follows_instructions": worker.task.follows_instructions,
                "clones": worker.clones,
            }
            for worker in models.speech_workers.values()
        ]
        transcribing = [
            {"id": worker.name, "is_live": worker.live_slots > 0}
            for worker in models.transcription_workers.values()
        ]
        names = "text_characters", "upload_mib", "recording_s"
        return {
            "object": "page",
            "speaking": speaking,
            "transcribing": transcribing,
            "stores_voices": models.voices is not None,
            "limits": {name: getattr(models.limits, name) for name in names},
        }


def _read_files() -> dict[str, tuple[bytes, str]]:
    """Content and media type of each file of the page. A request names one of them, never a path."""
    found = {}
    for file in files("voxport.runtime.serve").joinpath("page").iterdir():
        media_type = TYPES.get(file.name[file.name.rfind(".") :])
        if media_type:
            found[file.name] = (file.read_bytes(), media_type)
    return found


def _policy(host: str) -> str:
    """The content security policy. Some browsers do not count sockets of the page's host as 'self'."""
    sockets = f" ws://{host} wss://{host}" if HOST.fullmatch(host) else ""
    return "; ".join((*POLICY, f"connect-src 'self'{sockets}"))
