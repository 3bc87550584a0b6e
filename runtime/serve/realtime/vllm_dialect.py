"""The realtime sessions of vLLM, as its clients of Voxtral-Realtime use them."""

from voxport.bundle.bounds import FRAME_RATE
from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.realtime.session import Message, Session, Utterance, decode_pcm
from voxport.runtime.speech_to_text import TranscriptDelta

RATE = 16000
NO_MODEL = 'send {"type": "session.update", "model": "NAME"} first'


class VllmSession(Session):
    """A commit begins an utterance, and a final one ends it. Errors are strings."""

    async def handle(self, message: Message) -> None:
        if message["type"] != "session.update" and self.worker is None:
            raise ApiError(400, NO_MODEL, "model_not_validated")
        match message["type"]:
            case "session.update":
                self._update(message)
            case "input_audio_buffer.append":
                await self.append(decode_pcm(message.get("audio")), RATE, None)
            case "input_audio_buffer.commit":
                is_final = message.get("final", False)
                if not isinstance(is_final, bool):
                    raise ApiError(400, "final: expected true or false", "invalid_event")
                if is_final:  # else audio is transcribed as it arrives
                    self.finish()
            case other:
                raise ApiError(400, f"type {other[:50]!r}: is no event of this session", "unknown_event")

    def _update(self, message: Message) -> None:
        model = message.get("model")
        if not isinstance(model, str):
            raise ApiError(400, "model: expected a string", "invalid_event")
        if self.current:
            raise ApiError(400, "the model cannot change while audio is transcribed", "invalid_event")
        self.use(model)

    async def on_delta(self, utterance: Utterance, delta: TranscriptDelta) -> None:
        if delta.text:
            await self.connection.send({"type": "transcription.delta", "delta": delta.text})

    async def on_end(self, utterance: Utterance) -> None:
        # the model generates a token for each 80 ms, most of them padding
        tokens = round(utterance.seconds * FRAME_RATE)
        usage: Json = {"prompt_tokens": tokens, "completion_tokens": tokens, "total_tokens": 2 * tokens}
        done = {"type": "transcription.done", "text": utterance.job.transcript, "usage": usage}
        await self.connection.send(done)

    async def send_error(self, error: ApiError, message: Message) -> None:
        code = error.code or "processing_error"
        await self.connection.send({"type": "error", "error": error.message, "code": code})
