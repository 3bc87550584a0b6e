"""The paths of live transcription. A socket's dialect follows from its path, query or first message."""

import time
import uuid

from fastapi import APIRouter, WebSocket

from voxport.runtime.serve.errors import ApiError, draining
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.connection import Connection, Message, SessionContext
from voxport.runtime.serve.realtime.mistral_dialect import MistralSession
from voxport.runtime.serve.realtime.openai_dialect import OpenAiSession
from voxport.runtime.serve.realtime.session import Session, run_session
from voxport.runtime.serve.realtime.vllm_dialect import NO_MODEL, VllmSession
from voxport.runtime.serve.transcription.worker import TranscriptionWorker

REALTIME, MISTRAL = "/v1/realtime", "/v1/audio/transcriptions/realtime"
SUBPROTOCOL = "realtime"  # browsers use it, and send their key as another one


def realtime_router(models: Models, limits: Limits) -> APIRouter:
    router = APIRouter()

    @router.websocket(REALTIME)
    async def realtime(socket: WebSocket) -> None:
        query = socket.query_params
        if model := query.get("model"):
            _live_worker(models, model)  # raises before the socket is accepted
        context = await _accept(socket, models, limits)
        openai = OpenAiSession(context)
        if model:
            openai.choose(model)
        if query.get("intent") == "transcription":
            await run_session(openai, _session_created(openai))
            return
        vllm = VllmSession(context)

        def choose(message: Message) -> Session:
            if isinstance(message.get("session"), dict):
                return openai
            if isinstance(message.get("model"), str) or "final" in message:
                return vllm
            raise ApiError(400, NO_MODEL, "model_not_validated")

        await run_session(vllm, _session_created(openai), choose)

    @router.websocket(MISTRAL)
    async def mistral(socket: WebSocket) -> None:
        worker = _live_worker(models, socket.query_params.get("model", ""))
        session = MistralSession(await _accept(socket, models, limits), worker)
        await run_session(session, {"type": "session.created", "session": session.description()})

    for path in (REALTIME, MISTRAL):
        router.add_api_route(path, _refuse_request, include_in_schema=False)
    return router


async def _refuse_request() -> None:
    raise ApiError(426, "this path takes WebSockets only", "upgrade_required")


def _live_worker(models: Models, name: str) -> TranscriptionWorker:
    """Raises ApiError."""
    worker = models.transcription_worker(name)
    worker.check_live_slots()
    return worker


async def _accept(socket: WebSocket, models: Models, limits: Limits) -> SessionContext:
    """Raises ApiError before it accepts."""
    if models.is_draining:
        raise draining()
    offered = socket.scope.get("subprotocols", ())
    await socket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    connection = Connection(socket, limits, lambda: models.is_draining)
    key = socket.scope["voxport"]["key"]
    return SessionContext(connection, models, limits, key, uuid.uuid4().hex[:12])


def _session_created(session: OpenAiSession) -> Message:
    """One message with the fields that clients of OpenAI and of vLLM read."""
    common = {"event_id": session.event_id(), "session": session.description()}
    vllm = {"id": f"sess-{session.context.number}", "created": int(time.time())}
    return {"type": "session.created", **common, **vllm}
