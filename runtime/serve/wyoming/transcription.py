"""Speech to text: `transcribe`, `audio-start`, `audio-chunk` and `audio-stop`."""

from collections.abc import Callable

from wyoming import asr, info
from wyoming.audio import AudioChunk, AudioFormat, AudioStart, AudioStop
from wyoming.event import Event, Eventable

from voxport.runtime.audio.files import SAMPLE_BYTES, from_pcm16
from voxport.runtime.audio.sources import Converter
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import RequestFields
from voxport.runtime.serve.realtime.input_audio import InputAudio
from voxport.runtime.serve.transcription.job import TranscriptionJob
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.serve.wyoming.events import INVALID, Connection, Reply, RequestEvents, artifact, parse

MAX_CHANNELS = 8
RATES = (8000, 48000)
ENDINGS = (asr.Transcript(""), asr.TranscriptStop())


def asr_program(worker: TranscriptionWorker) -> info.AsrProgram:
    common = artifact(worker.name, f"Speech to text of {worker.name}")
    model = info.AsrModel(**common, languages=list(worker.task.languages))
    return info.AsrProgram(
        **common, models=[model], supports_transcript_streaming=True, requires_external_vad=True
    )


class TranscribeFields(RequestFields):
    name: str | None = None
    language: str | None = None


class TranscriptReply(Reply):
    """The text of a job, in pieces and whole."""

    def __init__(self, connection: Connection, job: TranscriptionJob, ignored: tuple[str, ...]):
        super().__init__(ENDINGS)
        self._connection, self._job, self._ignored = connection, job, ignored

    async def run(self) -> None:
        await self._connection.send(asr.TranscriptStart(), self._ignored)
        while (delta := await self._job.read()) is not None:
            if delta.text:
                await self._connection.send(asr.TranscriptChunk(delta.text))
        await self._connection.send(asr.Transcript(self._job.transcript))
        await self._connection.send(asr.TranscriptStop())

    def cancel(self) -> None:
        self._job.cancel()


class AudioEvents(RequestEvents):
    """The events of speech to text of one connection."""

    first, last = "transcribe", "audio-stop"
    _form: AudioFormat  # of the request whose rest is to come
    _audio: InputAudio
    _request = TranscribeFields()  # for the next audio

    def endings(self, event: Event) -> tuple[Eventable, ...]:
        return ENDINGS

    async def take(self, event: Event, worker: Callable[[str | None], TranscriptionWorker]) -> None:
        """`worker` returns the model of a name, or the preferred one."""
        unknown = self._connection.unknown
        match event.type:
            case "transcribe":
                self._request = TranscribeFields()
                request = parse(TranscribeFields, event, unknown)
                worker(request.name)
                self._request = request
            case "audio-start":
                if self._reply is not None:
                    raise ApiError(400, "audio-start: the last audio has no audio-stop", INVALID)
                self._begin(parse(AudioStart, event, unknown), worker)
            case "audio-chunk":
                chunk = parse(AudioChunk, event, unknown, audio=event.payload or b"")
                if self._reply is None:
                    self._begin(chunk, worker)
                if _format(chunk) != _format(self._form):
                    raise ApiError(400, "audio-chunk: its format differs from audio-start", INVALID)
                await self._feed(chunk.audio)
            case _:
                parse(AudioStop, event, unknown)
                if self._reply is None:
                    raise ApiError(400, "audio-stop: expected audio-start before it", INVALID)
                self._audio.finish()
                self._reply = None

    def _begin(self, form: AudioFormat, worker: Callable[[str | None], TranscriptionWorker]) -> None:
        request, self._request = self._request, TranscribeFields()
        model = worker(request.name)
        _check_format(form)
        language = None
        if request.is_taken("language", lambda: model.check_language(request.language)):
            language = model.check_language(request.language)
        is_live = bool(model.live_slots)
        job = model.submit_live(self, language=language) if is_live else model.submit(language=language)
        reply = TranscriptReply(self._connection, job, request.ignored)
        self._replies.add(reply)
        self._reply = reply
        converter = Converter(form.rate, model.task.sample_rate, form.channels)
        self._form, self._audio = form, InputAudio(1, job, converter, form.rate)

    async def _feed(self, content: bytes) -> None:
        """Waits while too much audio is ahead. Raises ApiError."""
        limits, channels, job = self._models.limits, self._form.channels, self._audio.job
        if len(content) % (SAMPLE_BYTES * channels):
            reason = f"{len(content)} bytes, expected whole samples of {SAMPLE_BYTES * channels}"
            raise ApiError(400, f"audio-chunk: {reason}", "invalid_audio")
        samples = from_pcm16(content).reshape(-1, channels)
        wait_s = limits.queue_s if job.session is None else limits.ahead_s  # a recording is queued
        for start in range(0, len(samples), self._form.rate):  # a second at a time
            self._audio.feed(samples[start : start + self._form.rate])
            await job.wait_for_room(wait_s)
        if job.seconds > limits.recording_s:
            message = f"audio has more than {limits.recording_s} s; start a new request"
            raise ApiError(400, message, "audio_too_long")


def _format(form: AudioFormat) -> tuple[int, int, int]:
    return form.rate, form.width, form.channels


def _check_format(form: AudioFormat) -> None:
    if form.width != SAMPLE_BYTES or not 1 <= form.channels <= MAX_CHANNELS:
        raise ApiError(
            400,
            f"audio: width {form.width} and {form.channels} channels; expected width {SAMPLE_BYTES} and "
            f"1 to {MAX_CHANNELS} channels",
            "invalid_audio",
        )
    if not RATES[0] <= form.rate <= RATES[1]:
        raise ApiError(400, f"audio: rate {form.rate}: expected {RATES[0]} to {RATES[1]} Hz", "invalid_audio")
