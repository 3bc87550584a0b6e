"""The realtime sessions of vLLM, as its clients of Voxtral-Realtime use them."""

from voxport.bundle.bounds import FRAME_RATE
from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.realtime.connection import Message
from voxport.runtime.serve.realtime.session import Session
from voxport.runtime.serve.realtime.utterances import Utterance, Utterances, decode_pcm
from voxport.runtime.speech_to_text import TranscriptDelta

RATE = 16000
NO_MODEL = 'send {"type": "session.update", "model": "NAME"} first'


class VllmSession(Session):
    """A commit begins an utterance, and a final one ends it. Errors are strings."""

    async def handle(self, message: Message) -> None:
        match message["type"]:
            case "session.update":
                self._update(message)
            case "input_audio_buffer.append":
                samples, utterances = decode_pcm(message.get("audio")), self._ready()
                if utterances.current is None:
                    await utterances.begin(RATE, None)
                await utterances.append(samples)
            case "input_audio_buffer.commit":
                self._commit(message.get("final", False))
            case other:
                raise ApiError(400, f"type {other[:50]!r}: is no event of this session", "unknown_event")

    def _update(self, message: Message) -> None:
        model = message.get("model")
        if not isinstance(model, str):
            raise ApiError(400, "model: expected a string", "invalid_event")
        if self.utterances and self.utterances.current:
            raise ApiError(400, "the model cannot change while audio is transcribed", "invalid_event")
        self.use(self.context.models.transcription_worker(model))

    def _ready(self) -> Utterances:
        if self.utterances is None:
            raise ApiError(400, NO_MODEL, "model_not_validated")
        return self.utterances

    def _commit(self, is_final: object) -> None:
        utterances = self._ready()
        if not isinstance(is_final, bool):
            raise ApiError(400, "final: expected true or false", "invalid_event")
        if is_final and utterances.finish() is None:  # else audio is transcribed as it arrives
            raise ApiError(400, "there is no audio to transcribe", "invalid_audio")

    async def on_delta(self, utterance: Utterance, delta: TranscriptDelta) -> None:
        if delta.text:
            await self.connection.send({"type": "transcription.delta", "delta": delta.text})

    async def on_end(self, utterance: Utterance, text: str) -> None:
        # the model generates a token for each 80 ms, most of them padding
        audio_tokens = round(utterance.seconds * FRAME_RATE)
        usage: Json = {
            "prompt_tokens": audio_tokens,
            "completion_tokens": audio_tokens,
            "total_tokens": 2 * audio_tokens,
        }
        await self.connection.send({"type": "transcription.done", "text": text, "usage": usage})

    async def on_job_error(self, utterance: Utterance, error: ApiError) -> None:
        await self.send_error(error, {})

    async def send_error(self, error: ApiError, message: Message) -> None:
        code = error.code or "processing_error"
        await self.connection.send({"type": "error", "error": error.message, "code": code})
