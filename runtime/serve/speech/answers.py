"""The bodies of answers with speech: a file, events, and JSON, as clients of OpenAI and of Mistral expect."""

import base64
import json
from collections.abc import AsyncIterator, Mapping

from voxport.bundle.json_types import Json
from voxport.runtime.serve.aliases import is_one_of
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import SpeechBody
from voxport.runtime.serve.speech.encoders import Encoder
from voxport.runtime.serve.speech.job import SpeechJob

MISTRAL_MODELS = ("voxtral-mini-tts-latest",)
MISTRAL_TYPES = {"application/json", "text/event-stream"}  # that its clients accept


def is_of_mistral(body: SpeechBody, headers: Mapping[str, str]) -> bool:
    """Whether a client expects the answers of Mistral's API.

    It has no `voice` and no `stream_format`, and one of these: a `voice_id`, `ref_audio` that is no URL,
    `stream` with the name of a model of Mistral, or it accepts JSON or events only.
    """
    accepted = {kind.partition(";")[0].strip() for kind in headers.get("accept", "").split(",")}
    is_bare = ":" not in (body.ref_audio or ":")
    names_model = "stream" in body.model_fields_set and is_one_of(body.model or "", MISTRAL_MODELS)
    is_marked = body.voice_id is not None or is_bare or names_model or accepted <= MISTRAL_TYPES
    return is_marked and not body.voice and "stream_format" not in body.model_fields_set


async def encoded(job: SpeechJob, encoder: Encoder) -> AsyncIterator[bytes]:
    """Pieces of the file. Raises ApiError."""
    while (block := await job.read()) is not None:
        if piece := await encoder.encode(block):
            yield piece
    if piece := await encoder.finish():
        yield piece


async def openai_events(
    pieces: AsyncIterator[bytes], job: SpeechJob, body: SpeechBody
) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()})
    read, made = len(body.input), job.frames
    usage = {"input_tokens": read, "output_tokens": made, "total_tokens": read + made}
    yield event({"type": "speech.audio.done", "usage": usage, "ended": job.status, "seed": body.seed})


async def mistral_events(
    pieces: AsyncIterator[bytes], job: SpeechJob, body: SpeechBody
) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield event(mistral_delta(piece))
    yield event(mistral_done(job, len(body.input), body.seed))


def mistral_delta(piece: bytes) -> Json:
    return {"type": "speech.audio.delta", "audio_data": base64.b64encode(piece).decode()}


def mistral_done(job: SpeechJob, characters: int, seed: int) -> Json:
    counts = {"prompt_tokens": characters, "completion_tokens": job.frames}
    usage = {**counts, "total_tokens": sum(counts.values())}
    return {"type": "speech.audio.done", "usage": usage, "ended": job.status, "seed": seed}


async def mistral_json(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """An object with the file in base64, piece by piece."""
    start, rest = b'{"audio_data":"', b""
    async for piece in pieces:
        content = rest + piece
        end = len(content) // 3 * 3
        rest = content[end:]
        yield start + base64.b64encode(content[:end])
        start = b""
    yield start + base64.b64encode(rest) + b'"}'


def error_event(error: ApiError) -> bytes:
    return event({"type": "speech.audio.error", "error": error.fields})


def event(content: Json) -> bytes:
    """One server-sent event."""
    return f"event: {content['type']}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n".encode()
