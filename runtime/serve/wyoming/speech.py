"""Text to speech: `synthesize` for a whole text, and `synthesize-start`, `-chunk` and `-stop` for pieces."""

import asyncio
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Literal

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.event import Event, Eventable
from wyoming.info import TtsProgram, TtsVoice
from wyoming.tts import SynthesizeStopped

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.files import SAMPLE_BYTES
from voxport.runtime.serve.aliases import ChosenVoice, find_voice, listed
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import RequestFields, check_length
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.job import ArrivingText
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.wyoming.events import (
    INVALID,
    Connection,
    Replies,
    Reply,
    RequestEvents,
    artifact,
    parse,
)
from voxport.runtime.speech_request import SpeechOptions
from voxport.runtime.text_to_speech import TextToSpeech

CHANNELS = 1
DEFAULT_VOICE = "default"  # for a bundle without voices: clients show no program without one
DEFAULT_LANGUAGE = "en"
ENDINGS = (AudioStop(),)
STREAM_ENDINGS = (*ENDINGS, SynthesizeStopped())
CHUNK_FRAMES = 1  # 80 ms each: the first samples come after one frame


def tts_program(worker: SpeechWorker) -> TtsProgram:
    voices = [
        TtsVoice(**artifact(voice, f"{voice} of {worker.name}"), languages=[_language(worker.task, voice)])
        for voice in _voices(worker.task)
    ]
    common = artifact(worker.name, f"Text to speech of {worker.name}")
    return TtsProgram(**common, voices=voices, supports_synthesize_streaming=True)


def _voices(task: TextToSpeech) -> list[str]:
    return task.bundle_voices() or [DEFAULT_VOICE]


def _language(task: TextToSpeech, voice: str) -> str:
    with suppress(UsageError):  # no default voice
        return task.language(None if voice == DEFAULT_VOICE else voice)
    return DEFAULT_LANGUAGE


class VoiceFields(RequestFields):
    name: str | None = None
    language: str | None = None


class TextFields(RequestFields):
    """`synthesize-chunk` and `synthesize-stop`."""

    text: str = ""


class SpeechFields(TextFields):
    """`synthesize` and `synthesize-start`."""

    voice: VoiceFields | None = None
    text_format: Literal["text"] = "text"


def choose_voice(
    models: Models, workers: list[SpeechWorker], request: SpeechFields
) -> tuple[SpeechWorker, ChosenVoice]:
    """The first of `workers` with the voice, or with one of the language, and the voice.

    Else it is the default voice of the first worker. Raises ApiError.
    """
    if not workers:
        raise ApiError(404, "this server has no model that speaks", "model_not_found")
    wanted = request.voice or VoiceFields()
    name, language = wanted.name, wanted.language
    if name == DEFAULT_VOICE:
        name, workers = None, [each for each in workers if not each.task.bundle_voices()] or workers
    voices = [(each, voice) for each in workers for voice in _voices(each.task)]
    if name:
        worker = _worker_of(name, models, workers)
    else:
        spoken = (each for each in voices if language and _speaks(each[0].task, each[1], language))
        worker, voice = next(spoken, (workers[0], DEFAULT_VOICE))
        name = None if voice == DEFAULT_VOICE else voice
    found = models.aliases.voice(name, worker, models.voices)
    if language and not _speaks(worker.task, found.voice or DEFAULT_VOICE, language):
        languages = listed(sorted({_language(each.task, voice) for each, voice in voices}))
        request.ignore("voice.language", f"expected one of {languages}", "language_not_found")
    return worker, found


def _worker_of(name: str, models: Models, workers: list[SpeechWorker]) -> SpeechWorker:
    """Prefers voices of any bundle to names of other services, which mean voices of the first bundle."""
    store = models.voices
    for each in workers:
        if find_voice(name, each.task.bundle_voices(), store.of(each.name) if store else []):
            return each
    return workers[0]


def _speaks(task: TextToSpeech, voice: str, language: str) -> bool:
    """Compares languages without their regions, as in `en-US`."""
    return language.replace("_", "-").partition("-")[0].lower() == _language(task, voice)


class SpeechReply(Reply):
    """Speaks a text as one stream of audio. Of one that arrives, each part is spoken when it is there."""

    def __init__(
        self,
        connection: Connection,
        choice: tuple[SpeechWorker, ChosenVoice],
        ignored: tuple[str, ...],
        text: str | ArrivingText,
        threads: Executor | None = None,
    ):
        """`threads` wait for the parts of a text that arrives."""
        super().__init__(ENDINGS if isinstance(text, str) else STREAM_ENDINGS)
        self._connection, self._ignored, self._threads, self._text = connection, ignored, threads, text
        self._worker, voice = choice
        is_stored = voice.name != voice.voice  # and may be deleted
        self._options = SpeechOptions(
            voice=voice.voice, chunk_frames=CHUNK_FRAMES, store_prefix=not is_stored
        )

    async def run(self) -> None:
        prepare = partial(self._worker.prepare, self._text, self._options, self._threads)
        prepared = await asyncio.get_running_loop().run_in_executor(self._threads, prepare)
        job, rate, has_begun = self._worker.submit(prepared), self._worker.task.sample_rate, False
        try:
            while (block := await job.read()) is not None:
                if not has_begun:
                    await self._connection.send(AudioStart(rate, SAMPLE_BYTES, CHANNELS), self._ignored)
                    has_begun = True
                await self._connection.send(AudioChunk(rate, SAMPLE_BYTES, CHANNELS, block))
        finally:
            job.cancel()
        for ending in self.endings:
            await self._connection.send(ending)

    def cancel(self) -> None:
        """Ends the thread that waits for text."""
        if isinstance(self._text, ArrivingText):
            self._text.finish()


class SpeechEvents(RequestEvents):
    """The events of text to speech of one connection."""

    first, last = "synthesize-start", "synthesize-stop"

    def __init__(self, connection: Connection, replies: Replies, models: Models, threads: Executor):
        super().__init__(connection, replies, models)
        self._threads, self._max_characters = threads, models.limits.text_characters
        self._text: ArrivingText  # of the request whose rest is to come

    def endings(self, event: Event) -> tuple[Eventable, ...]:
        return ENDINGS if event.type == "synthesize" else STREAM_ENDINGS

    async def take(self, event: Event, workers: list[SpeechWorker]) -> None:
        """`workers` are those that may speak, the preferred one first."""
        if event.type in ("synthesize-chunk", "synthesize-stop"):
            await self._take_rest(event)
            return
        request = parse(SpeechFields, event, self._connection.unknown)
        match event.type:
            case "synthesize":
                if self._reply is None:  # else it repeats a text for servers that do not stream
                    check_length(len(request.text), self._max_characters, "text")
                    choice = choose_voice(self._models, workers, request)
                    self._replies.add(SpeechReply(self._connection, choice, request.ignored, request.text))
            case _:
                if self._reply is not None:
                    raise ApiError(400, "synthesize-start: the last text has no synthesize-stop", INVALID)
                choice = choose_voice(self._models, workers, request)
                self._text = ArrivingText(self._max_characters)
                reply = SpeechReply(self._connection, choice, request.ignored, self._text, self._threads)
                self._replies.add(reply)
                self._reply = reply

    async def _take_rest(self, event: Event) -> None:
        rest = parse(TextFields, event, self._connection.unknown)
        self._connection.unknown.add(rest.ignored)
        if self._reply is None:
            raise ApiError(400, f"{event.type}: expected synthesize-start before it", INVALID)
        if event.type == "synthesize-chunk":
            await self._text.add(rest.text)
        else:
            self._text.finish()
            self._reply = None
