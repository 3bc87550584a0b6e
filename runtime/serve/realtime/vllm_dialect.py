"""The realtime sessions of vLLM, as its clients of Voxtral-Realtime use them."""

from typing import Annotated, ClassVar

from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import UNSUPPORTED, RequestFields, only
from voxport.runtime.serve.realtime.connection import Message
from voxport.runtime.serve.realtime.input_audio import InputAudio
from voxport.runtime.serve.realtime.session import Session
from voxport.runtime.speech_to_text import TranscriptDelta

RATE = 16000
SAMPLES = "audio is 16-bit PCM at 16000 Hz"
NO_MODEL = 'send {"type": "session.update", "model": "NAME"} first'


class ModelUpdate(RequestFields):
    """`session.update`."""

    type: str
    model: str
    input_audio_format: Annotated[str, only(("pcm16",), SAMPLES, UNSUPPORTED)] = "pcm16"


class VllmSession(Session):
    """A commit begins a part, and a final one ends it. Errors are strings."""

    events: ClassVar = {
        "session.update": None,
        "input_audio_buffer.append": ("audio",),
        "input_audio_buffer.commit": ("final",),
    }

    async def react(self, message: Message) -> None:
        if message["type"] != "session.update" and self.worker is None:
            raise ApiError(400, NO_MODEL, "model_not_validated")
        match message["type"]:
            case "session.update":
                if self.current:
                    raise ApiError(400, "the model cannot change while audio is transcribed", "invalid_event")
                update = self.parse_update(ModelUpdate, message)
                self.use(update.model)
                self.connection.unknown.add(update.ignored)
            case "input_audio_buffer.append":
                await self.append(message, "pcm_s16le", RATE, None)
            case "input_audio_buffer.commit":
                is_final = message.get("final") or False
                if not isinstance(is_final, bool):
                    raise ApiError(400, "final: expected true or false", "invalid_event")
                if is_final:  # else audio is transcribed as it arrives
                    self.finish()

    async def on_delta(self, audio: InputAudio, delta: TranscriptDelta) -> None:
        if delta.text:
            await self.connection.send({"type": "transcription.delta", "delta": delta.text})

    async def on_end(self, audio: InputAudio) -> None:
        assert self.worker is not None
        heard, written = self.worker.task.count_tokens(audio.job.transcript, audio.seconds)
        usage: Json = {"prompt_tokens": heard, "completion_tokens": written, "total_tokens": heard + written}
        done: Json = {"type": "transcription.done", "text": audio.job.transcript, "usage": usage}
        await self.connection.send(done)

    async def send_error(self, error: ApiError, message: Message) -> None:
        code = error.code or "processing_error"
        await self.connection.send({"type": "error", "error": error.message, "code": code})
