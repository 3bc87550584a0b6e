"""The ASGI application: routes, errors and access."""

import logging
from collections.abc import Iterable

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError, from_exception
from voxport.runtime.serve.http.access import AccessMiddleware, Keys
from voxport.runtime.serve.http.page_routes import page_router
from voxport.runtime.serve.http.responses import ClientLeft
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.routes import realtime_router
from voxport.runtime.serve.speech.api import speech_router
from voxport.runtime.serve.transcription.api import transcription_router
from voxport.runtime.serve.voices.api import voice_router

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_app(
    models: Models,
    metrics: Metrics,
    limits: Limits,
    keys: Keys,
    origins: Iterable[str] = (),
    host: str = "localhost",
) -> ASGIApp:
    """The application. `models` are started; `origins` and `host` as in `AccessMiddleware`."""
    logging.getLogger("voxport.runtime.text").setLevel(logging.INFO)  # debug lines quote the text of a client
    app = FastAPI(openapi_url=None)
    app.include_router(speech_router(models, limits))
    app.include_router(transcription_router(models, limits))
    app.include_router(voice_router(models, limits))
    app.include_router(realtime_router(models, limits))
    app.include_router(page_router(models, limits))
    _add_listings(app, models)
    _add_probes(app, models, metrics)
    app.router.default = _not_found

    for kind in (ApiError, UsageError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _answer)
    return AccessMiddleware(app, keys, limits, metrics, origins, host)


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
    raise ApiError(404, "this server has no such path", "not_found")


def _add_listings(app: FastAPI, models: Models) -> None:
    @app.get("/v1/models")
    async def list_models() -> Json:
        return {"object": "list", "data": [_model(name) for name in models.names]}

    @app.get("/v1/models/{name}")
    async def one_model(name: str) -> Json:
        models.check_name(name)
        return _model(name)


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "voxport"}


def _add_probes(app: FastAPI, models: Models, metrics: Metrics) -> None:
    @app.head("/healthz")
    @app.get("/healthz")
    async def is_alive() -> Response:
        return PlainTextResponse("ok\n")

    @app.head("/readyz")
    @app.get("/readyz")
    async def is_ready() -> Response:
        return PlainTextResponse("ready\n") if models.is_ready else PlainTextResponse("not ready\n", 503)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=METRICS_TYPE)
