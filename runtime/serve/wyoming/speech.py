"""Text to speech: `synthesize` for a whole text, and `synthesize-start`, `-chunk` and `-stop` for pieces."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.event import Event
from wyoming.info import TtsProgram, TtsVoice
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStopped,
    SynthesizeTextFormat,
    SynthesizeVoice,
)

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.files import SAMPLE_BYTES
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import check_length
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.wyoming.events import INVALID, VOXPORT, Connection, Replies, Reply, parse
from voxport.runtime.speech_request import SpeechOptions
from voxport.runtime.text_to_speech import TextToSpeech

CHANNELS = 1
DEFAULT_VOICE = "default"  # for a bundle without voices: clients show no program without one
DEFAULT_LANGUAGE = "en"
CHUNK_FRAMES = 1  # 80 ms each: the first samples come after one frame


def tts_program(worker: SpeechWorker) -> TtsProgram:
    voices = [
        TtsVoice(voice, VOXPORT, True, f"{voice} of {worker.name}", None, [_language(worker.task, voice)])
        for voice in _voices(worker.task)
    ]
    description = f"Text to speech of {worker.name}"
    return TtsProgram(
        worker.name, VOXPORT, True, description, None, voices, supports_synthesize_streaming=True
    )


def _voices(task: TextToSpeech) -> list[str]:
    return task.bundle_voices() or [DEFAULT_VOICE]


def _language(task: TextToSpeech, voice: str) -> str:
    with suppress(UsageError):  # no default voice
        return task.language(None if voice == DEFAULT_VOICE else voice)
    return DEFAULT_LANGUAGE


def choose_voice(
    workers: Iterable[SpeechWorker], requested: SynthesizeVoice | None
) -> tuple[SpeechWorker, str | None]:
    """The first of `workers` with the voice, or with one of the language, and the name of the voice.

    Without a requested name or language it is the default voice of the first worker. Raises ApiError.
    """
    workers = list(workers)
    if not workers:
        raise ApiError(404, "this server has no model that speaks", "model_not_found")
    if requested is None or not (requested.name or requested.language):
        return workers[0], workers[0].default_voice()
    if requested.speaker:
        raise ApiError(400, "voice.speaker: the voices have no speakers; leave it out", "voice_not_found")
    voices = [(worker, voice) for worker in workers for voice in _voices(worker.task)]
    for worker, voice in voices:
        if voice == requested.name or (
            not requested.name and _speaks(worker.task, voice, requested.language)
        ):
            return worker, voice if voice in worker.task.bundle_voices() else worker.default_voice()
    if requested.name:
        names = ", ".join(sorted({voice for _, voice in voices}))
        raise ApiError(400, f"voice.name: expected one of {names}", "voice_not_found")
    languages = ", ".join(sorted({_language(worker.task, voice) for worker, voice in voices}))
    raise ApiError(400, f"voice.language: expected one of {languages}", "language_not_found")


def _speaks(task: TextToSpeech, voice: str, language: str | None) -> bool:
    """Compares languages without their regions, as in `en-US`."""
    return (language or "").replace("_", "-").partition("-")[0].lower() == _language(task, voice)


class SpeechReply(Reply):
    """Speaks a text as one stream of audio."""

    def __init__(
        self,
        connection: Connection,
        worker: SpeechWorker,
        voice: str | None,
        text: str | Iterable[str],
        threads: Executor | None = None,
    ):
        """`threads` wait for the parts of a text that arrives in pieces."""
        self._connection, self._worker, self._text, self._threads = connection, worker, text, threads
        self._options: SpeechOptions = {"voice": voice, "chunk_frames": CHUNK_FRAMES}

    async def run(self) -> None:
        prepare = partial(self._worker.prepare, self._text, self._options, self._threads)
        prepared = await asyncio.get_running_loop().run_in_executor(self._threads, prepare)
        job, rate, has_begun = self._worker.submit(prepared), self._worker.task.sample_rate, False
        try:
            while (block := await job.read()) is not None:
                if not has_begun:
                    await self._connection.send(AudioStart(rate, SAMPLE_BYTES, CHANNELS))
                    has_begun = True
                await self._connection.send(AudioChunk(rate, SAMPLE_BYTES, CHANNELS, block))
        finally:
            job.cancel()
        await self._connection.send(AudioStop())

    def cancel(self) -> None:
        pass  # the job ends with `run`


class StreamedSpeechReply(SpeechReply):
    """Speaks a text that arrives, each part as soon as its last sentence is there. It is one job."""

    def __init__(self, connection: Connection, worker: SpeechWorker, voice: str | None, threads: Executor):
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        super().__init__(connection, worker, voice, iter(self._pieces.get, None), threads)
        self.characters = 0

    def add(self, text: str) -> None:
        """The next piece of the text."""
        self.characters += len(text)
        if text:
            self._pieces.put(text)

    def finish(self) -> None:
        """No text follows."""
        self._pieces.put(None)

    cancel = finish  # ends the thread that waits for text

    async def run(self) -> None:
        await super().run()
        await self._connection.send(SynthesizeStopped())


class SpeechEvents:
    """The events of text to speech of one connection."""

    def __init__(self, connection: Connection, replies: Replies, limits: Limits, threads: Executor):
        self._connection, self._replies, self._limits, self._threads = connection, replies, limits, threads
        self._streamed_reply: StreamedSpeechReply | None = None

    @property
    def is_open(self) -> bool:
        """Whether more of a text is to come."""
        return self._streamed_reply is not None

    def handle(self, event: Event, workers: list[SpeechWorker]) -> None:
        """`workers` are those that may speak, the preferred one first. Raises ApiError."""
        match event.type:
            case "synthesize":
                if self._streamed_reply is None:  # else it repeats a text for servers that do not stream
                    request = parse(Synthesize, event)
                    worker, voice = self._choose(request, workers)
                    check_length(len(request.text), self._limits.text_characters, "text")
                    self._replies.add(SpeechReply(self._connection, worker, voice, request.text))
            case "synthesize-start":
                if self._streamed_reply is not None:
                    raise ApiError(400, "synthesize-start: the last text has no synthesize-stop", INVALID)
                worker, voice = self._choose(parse(SynthesizeStart, event), workers)
                reply = StreamedSpeechReply(self._connection, worker, voice, self._threads)
                self._replies.add(reply)
                self._streamed_reply = reply
            case "synthesize-chunk":
                reply, text = self._current(event), parse(SynthesizeChunk, event).text
                check_length(reply.characters + len(text), self._limits.text_characters, "text")
                reply.add(text)
            case _:
                self._current(event).finish()
                self._streamed_reply = None

    def _choose(
        self, request: Synthesize | SynthesizeStart, workers: list[SpeechWorker]
    ) -> tuple[SpeechWorker, str | None]:
        if request.text_format not in (None, SynthesizeTextFormat.TEXT):
            raise ApiError(400, "text_format: expected text", "invalid_value", "text_format")
        return choose_voice(workers, request.voice)

    def _current(self, event: Event) -> StreamedSpeechReply:
        if self._streamed_reply is None:
            raise ApiError(400, f"{event.type}: expected synthesize-start before it", INVALID)
        return self._streamed_reply
