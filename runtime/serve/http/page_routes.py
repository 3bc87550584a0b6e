"""The page of the server at `/`, its files below `/page/`, and what the page offers at `/v1/page`."""

import re
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response

from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models

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
    "object-src 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)


def page_router(models: Models, limits: Limits) -> APIRouter:
    router, contents = APIRouter(), _read_files()

    async def show(request: Request, name: str = INDEX) -> Response:
        if name not in contents:
            raise ApiError(404, f"the page has no file {name[:50]!r}", "not_found")
        content, media_type = contents[name]
        policy = _policy(request.headers.get("host", ""))
        headers = {**HEADERS, "content-security-policy": policy}
        return Response(content, media_type=media_type, headers=headers)

    for path in ("/", "/page/{name}"):
        router.add_api_route(path, show, methods=["GET", "HEAD"])

    @router.get("/v1/page")
    async def describe() -> Json:
        """What the page offers. Needs a key, because it names the models."""
        speaking = [
            {"id": worker.name, "sample_rate": worker.task.sample_rate}
            for worker in models.speech_workers.values()
        ]
        transcribing = [
            {"id": worker.name, "is_live": worker.live_slots > 0}
            for worker in models.transcription_workers.values()
        ]
        page_limits = {"text_characters": limits.text_characters}
        return {"object": "page", "speaking": speaking, "transcribing": transcribing, "limits": page_limits}

    return router


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
