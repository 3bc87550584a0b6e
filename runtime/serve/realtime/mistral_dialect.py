"""The realtime transcription of Mistral's API."""

from voxport.bundle.bounds import MAX_RATE, MIN_RATE
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.realtime.connection import Message, SessionContext
from voxport.runtime.serve.realtime.session import Session
from voxport.runtime.serve.realtime.utterances import Utterance, decode_pcm
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.speech_to_text import TranscriptDelta

ENCODING = "pcm_s16le"
MAX_APPEND = 262_144  # bytes
CODES = {400: 3001, 404: 3004, 429: 3029, 503: 3053}  # error codes; the API documents only that they are ints


class MistralSession(Session):
    """One recording per socket. `input_audio.end` ends it; the session ends once its text is sent."""

    def __init__(self, context: SessionContext, worker: TranscriptionWorker):
        super().__init__(context)
        self._worker = worker
        self._rate, self._delay_ms = 16000, worker.task.delays_ms[0]
        self._has_ended = False  # the audio
        self.use(worker)

    def description(self) -> Message:
        """The effective configuration of the session."""
        return {
            "request_id": f"ws_{self.context.number}",
            "model": self._worker.name,
            "audio_format": {"encoding": ENCODING, "sample_rate": self._rate},
            "target_streaming_delay_ms": self._delay_ms,
        }

    async def handle(self, message: Message) -> None:
        assert self.utterances is not None
        if self._has_ended:
            raise ApiError(400, "the audio has ended; its text follows", "invalid_event")
        match message["type"]:
            case "session.update":
                await self._update(message)
            case "input_audio.append":
                await self._append(message.get("audio"))
            case "input_audio.flush":
                pass  # audio is transcribed as it arrives
            case "input_audio.end":
                if self.utterances.finish() is None:
                    raise ApiError(400, "there is no audio to transcribe", "invalid_audio")
                self._has_ended = True
            case other:
                raise ApiError(400, f"type {other[:50]!r}: is no event of this session", "unknown_event")

    async def _append(self, audio: object) -> None:
        assert self.utterances is not None
        samples = decode_pcm(audio)
        if 2 * len(samples) > MAX_APPEND:
            raise ApiError(400, f"audio: has {2 * len(samples)} bytes, expected at most {MAX_APPEND}")
        if self.utterances.current is None:
            await self.utterances.begin(self._rate, self._delay_ms)
        await self.utterances.append(samples)

    async def _update(self, message: Message) -> None:
        assert self.utterances is not None
        session = message.get("session")
        if not isinstance(session, dict):
            raise ApiError(400, "session: expected an object")
        if self.utterances.current:
            raise ApiError(400, "session: cannot change once audio has begun")
        form = session.get("audio_format") or {}
        if not isinstance(form, dict):
            raise ApiError(400, "audio_format: expected an object")
        rate, delay = form.get("sample_rate", self._rate), session.get("target_streaming_delay_ms")
        if form.get("encoding", ENCODING) != ENCODING:
            raise ApiError(400, f"audio_format.encoding: expected {ENCODING}")
        if not isinstance(rate, int) or not MIN_RATE <= rate <= MAX_RATE:
            raise ApiError(400, f"audio_format.sample_rate: expected {MIN_RATE} to {MAX_RATE}")
        delays = self._worker.task.delays_ms
        if delay is not None and (type(delay) is not int or delay not in delays):  # 480.0 == 480
            raise ApiError(400, f"target_streaming_delay_ms: expected one of {', '.join(map(str, delays))}")
        self._rate, self._delay_ms = rate, self._delay_ms if delay is None else delay
        await self.connection.send({"type": "session.updated", "session": self.description()})

    async def on_delta(self, utterance: Utterance, delta: TranscriptDelta) -> None:
        if delta.text:
            await self.connection.send({"type": "transcription.text.delta", "text": delta.text})

    async def on_end(self, utterance: Utterance, text: str) -> None:
        seconds = round(utterance.seconds)
        usage = {
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "total_tokens": 0,
            "prompt_audio_seconds": seconds,
        }
        done: Message = {
            "model": self._worker.name,
            "text": text,
            "usage": usage,
            "language": None,
            "segments": [],
        }
        await self.connection.send({"type": "transcription.done", **done})
        self.connection.end()

    async def on_job_error(self, utterance: Utterance, error: ApiError) -> None:
        await self.send_error(error, {})
        self.connection.end()

    async def send_error(self, error: ApiError, message: Message) -> None:
        code = CODES.get(error.status, 3000)
        await self.connection.send({"type": "error", "error": {"message": error.message, "code": code}})
