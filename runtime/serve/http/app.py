"""The ASGI application: routes, errors and access."""

import logging
from collections.abc import Iterable

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError, from_exception
from voxport.runtime.serve.http.access import AccessMiddleware
from voxport.runtime.serve.http.keys import Keys
from voxport.runtime.serve.http.openapi import describe
from voxport.runtime.serve.http.page_routes import page_router
from voxport.runtime.serve.http.responses import CLIENT_LEFT
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.routes import realtime_router
from voxport.runtime.serve.speech.api import speech_router
from voxport.runtime.serve.transcription.api import transcription_router
from voxport.runtime.serve.voices.api import voice_router

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
CODES = {404: "not_found", 405: "method_not_allowed"}  # for errors that the framework raises
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
log = logging.getLogger(__name__)


def build_app(
    models: Models,
    metrics: Metrics,
    limits: Limits,
    keys: Keys,
    origins: Iterable[str] = (),
    host: str = "localhost",
) -> ASGIApp:
    """The application. `models` are started; `origins` and `host` as in `AccessMiddleware`."""
    logging.getLogger("voxport.runtime.text").setLevel(
        logging.INFO
    )  # its debug lines quote the text of a client
    app = FastAPI(title="voxport", docs_url=None, redoc_url=None)
    app.include_router(speech_router(models, limits))
    app.include_router(transcription_router(models, limits))
    app.include_router(voice_router(models, limits))
    app.include_router(realtime_router(models, limits))
    app.include_router(page_router(models, limits))
    _add_listings(app, models)
    _add_probes(app, models, metrics)
    describe(app, models, limits)
    app.router.default = _not_found

    async def answer(request: HTTPConnection, raised: Exception) -> Response:
        if request.scope["type"] == "websocket":
            raise raised  # `AccessMiddleware` refuses the socket
        error = _as_api_error(raised)
        if (
            error.status == 500 and error is raised
        ):  # `AccessMiddleware` logs the others, which are raised again
            log.error("a request failed", exc_info=raised)
        more = dict(raised.headers or {}) if isinstance(raised, HTTPException) else {}
        if "Allow" in more:
            more["Allow"] = _allowed_methods(app, request.scope)
        return JSONResponse(error.body, error.status, {**more, **error.headers})

    async def ignore(request: HTTPConnection, raised: Exception) -> Response:
        return Response(status_code=CLIENT_LEFT)  # is not sent

    for kind in (ApiError, UsageError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(ClientDisconnect, ignore)  # before the whole body arrived
    return AccessMiddleware(app, keys, limits, metrics, origins, host)


def _allowed_methods(app: FastAPI, scope: Scope) -> str:
    """The methods of a path, also if it has several routes: the framework names the first one only."""

    def has(method: str) -> bool:
        return any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.routes)

    return ", ".join(filter(has, METHODS))


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """An unknown path, also of a socket: the router would close a socket without an error."""
    raise ApiError(404, "this server has no such path", "not_found")


def _as_api_error(error: Exception) -> ApiError:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        param = str(first["loc"][-1]) if first["loc"] else None
        return ApiError(400, f"{param or 'request'}: {first['msg']}", "invalid_value", param)
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), CODES.get(error.status_code))
    return from_exception(error)


def _add_listings(app: FastAPI, models: Models) -> None:
    @app.get("/v1/models")
    async def list_models() -> Json:
        return {"object": "list", "data": [_model(name) for name in models.names]}

    @app.get("/v1/models/{name}")
    async def one_model(name: str) -> Json:
        if name not in models.names:
            names = ", ".join(models.names)
            raise ApiError(
                404, f"no model {name[:100]!r}; this server has: {names}", "model_not_found", "model"
            )
        return _model(name)


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "voxport"}


def _add_probes(app: FastAPI, models: Models, metrics: Metrics) -> None:
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz")
    async def is_alive() -> Response:
        return PlainTextResponse("ok\n")

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz")
    async def is_ready() -> Response:
        return PlainTextResponse("ready\n") if models.is_ready else PlainTextResponse("not ready\n", 503)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=METRICS_TYPE)
