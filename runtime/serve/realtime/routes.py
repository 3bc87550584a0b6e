"""The paths of live transcription. A socket's dialect follows from its path, query or first message."""

import time
from concurrent.futures import ThreadPoolExecutor

from fastapi import APIRouter, WebSocket

from voxport.runtime.serve.errors import ApiError, draining
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.connection import Connection, Message
from voxport.runtime.serve.realtime.mistral_dialect import MistralSession
from voxport.runtime.serve.realtime.openai_dialect import OpenAiSession
from voxport.runtime.serve.realtime.session import Session, run_session
from voxport.runtime.serve.realtime.speech_dialects import MistralSpeechSession, OmniSession
from voxport.runtime.serve.realtime.vllm_dialect import NO_MODEL, VllmSession

REALTIME, MISTRAL = "/v1/realtime", "/v1/audio/transcriptions/realtime"
OMNI, MISTRAL_SPEECH = "/v1/audio/speech/stream", "/v1/audio/speech/realtime"
SUBPROTOCOL = "realtime"  # browsers use it, and send their key as another one


def realtime_router(models: Models) -> APIRouter:
    router = APIRouter()

    @router.websocket(REALTIME)
    async def realtime(socket: WebSocket) -> None:
        model = socket.query_params.get("model") or None
        if model:
            models.live_worker(model)
        connection = await _accept(socket, models, ("model", "intent"))
        openai, vllm = OpenAiSession(connection, models), VllmSession(connection, models)
        if model:
            openai.use(model)
        if socket.query_params.get("intent") == "transcription":
            await run_session(openai, _session_created(openai))
            return

        def choose(message: Message) -> Session:
            if isinstance(message.get("session"), dict):
                return openai
            if isinstance(message.get("model"), str) or "final" in message:
                return vllm
            raise ApiError(400, NO_MODEL, "model_not_validated")

        await run_session(vllm, _session_created(openai), choose)

    @router.websocket(MISTRAL)
    async def mistral(socket: WebSocket) -> None:
        worker = models.live_worker(socket.query_params.get("model") or None)
        session = MistralSession(await _accept(socket, models, ("model",)), models, worker.name)
        await run_session(session, {"type": "session.created", "session": session.description()})

    _add_speech(router, models)
    for path in (REALTIME, MISTRAL, OMNI, MISTRAL_SPEECH):
        router.add_api_route(path, _refuse_request)
    return router


def _add_speech(router: APIRouter, models: Models) -> None:
    threads = ThreadPoolExecutor(models.limits.sockets, "arriving text")

    @router.websocket(OMNI)
    async def omni(socket: WebSocket) -> None:
        await run_session(OmniSession(await _accept(socket, models), models, threads), None)

    @router.websocket(MISTRAL_SPEECH)
    async def mistral_speech(socket: WebSocket) -> None:
        model = socket.query_params.get("model") or None
        models.speech_worker(model)
        connection = await _accept(socket, models, ("model",))
        session = MistralSpeechSession(connection, models, threads, model)
        await run_session(session, {"type": "session.created", "session": session.description()})


async def _accept(socket: WebSocket, models: Models, query: tuple[str, ...] = ()) -> Connection:
    """`query`: names of the fields of the address that are read. Raises ApiError if the server shuts down."""
    if models.is_draining:
        raise draining()
    connection = Connection(socket, models)
    connection.unknown.add(name for name in socket.query_params if name not in query)
    offered = socket.scope.get("subprotocols", ())
    await socket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    return connection


async def _refuse_request() -> None:
    raise ApiError(426, "this path takes WebSockets only", "upgrade_required")


def _session_created(session: OpenAiSession) -> Message:
    """One message with the fields that clients of OpenAI and of vLLM read."""
    common = {"event_id": session.event_id(), "session": session.description()}
    vllm = {"id": f"sess-{session.connection.number}", "created": int(time.time())}
    return {"type": "session.created", **common, **vllm}
