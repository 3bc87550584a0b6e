"""Text to speech: `synthesize` for a whole text, and `synthesize-start`, `-chunk` and `-stop` for pieces."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from queue import SimpleQueue
from typing import Unpack

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.event import Event
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStopped,
    SynthesizeTextFormat,
)

from runtime.audio.files import pcm16
from runtime.serve.errors import ApiError
from runtime.serve.limits import Limits
from runtime.serve.speech.job import SpeechJob
from runtime.serve.speech.worker import SpeechWorker
from runtime.serve.wyoming.events import INVALID, Connection, parse
from runtime.serve.wyoming.info import choose_voice
from runtime.serve.wyoming.replies import Replies, Reply
from runtime.speech_request import SpeechOptions
from runtime.text_to_speech import Speech

KEY = ":wyoming"  # in the queues of the workers; no key of a file has a colon in its name
WIDTH, CHANNELS = 2, 1
CHUNK_FRAMES = 1  # of 80 ms: the first samples come after one frame


class SpeechReply(Reply):
    """Speaks a text as one stream of audio."""

    def __init__(self, connection: Connection, worker: SpeechWorker, voice: str | None):
        self._connection, self._worker = connection, worker
        self._options: SpeechOptions = {"voice": voice, "chunk_frames": CHUNK_FRAMES}
        self._has_begun = False

    async def run(self) -> None:
        await self._speak()
        await self._connection.send(AudioStop())

    @abstractmethod
    async def _speak(self) -> None:
        """Sends the audio."""

    async def _job(self, text: str, **options: Unpack[SpeechOptions]) -> SpeechJob:
        """Sends the speech of a text. Raises ApiError or UsageError."""
        prepared = await asyncio.to_thread(self._worker.prepare, text, self._options | options)
        job = self._worker.submit(prepared, KEY)
        try:
            while (block := await job.read()) is not None:
                await self._send(block)
        finally:
            job.cancel()
        return job

    async def _send(self, block: bytes) -> None:
        rate = self._worker.task.sample_rate
        if not self._has_begun:
            await self._connection.send(AudioStart(rate, WIDTH, CHANNELS))
            self._has_begun = True
        await self._connection.send(AudioChunk(rate, WIDTH, CHANNELS, block))


class WholeReply(SpeechReply):
    """Speaks a text that is there."""

    def __init__(self, connection: Connection, worker: SpeechWorker, voice: str | None, text: str):
        super().__init__(connection, worker, voice)
        self._text = text

    async def _speak(self) -> None:
        await self._job(self._text)

    def cancel(self) -> None:
        pass  # the job ends with `run`


class StreamedReply(SpeechReply):
    """Speaks a text that arrives, each part as soon as its last sentence is there.

    A thread of `threads` splits the text, because it waits for the next piece.
    """

    def __init__(self, connection: Connection, worker: SpeechWorker, voice: str | None, threads: Executor):
        super().__init__(connection, worker, voice)
        self._threads = threads
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        self.characters = 0

    def add(self, text: str) -> None:
        """The next piece of the text."""
        self.characters += len(text)
        if text:
            self._pieces.put(text)

    def finish(self) -> None:
        """No text follows."""
        self._pieces.put(None)

    cancel = finish  # ends the thread

    async def run(self) -> None:
        await super().run()
        await self._connection.send(SynthesizeStopped())

    async def _speak(self) -> None:
        pieces = iter(self._pieces.get, None)
        text = await asyncio.to_thread(Speech, self._worker.task, pieces, **self._options)
        silence = b""
        loop = asyncio.get_running_loop()
        while (part := await loop.run_in_executor(self._threads, text.next_part)) is not None:
            if silence:
                await self._send(silence)
            job = await self._job(part.text, verbatim=True)  # the text of a part is cleaned up already
            silence = pcm16(text.end_part(job.status))


class SpeechEvents:
    """The events of text to speech of one connection."""

    def __init__(self, connection: Connection, replies: Replies, limits: Limits, threads: Executor):
        self._connection, self._replies, self._limits, self._threads = connection, replies, limits, threads
        self._streamed: StreamedReply | None = None

    @property
    def is_open(self) -> bool:
        """Whether more of a text is to come."""
        return self._streamed is not None

    async def handle(self, event: Event, workers: Callable[[], list[SpeechWorker]]) -> None:
        """`workers` are those that may speak, the preferred one first. Raises ApiError."""
        match event.type:
            case "synthesize":
                if self._streamed is None:  # else it repeats a text for servers that do not stream
                    await self._whole(parse(Synthesize, event), workers())
            case "synthesize-start":
                await self._start(parse(SynthesizeStart, event), workers())
            case "synthesize-chunk":
                self._add(self._current(event), parse(SynthesizeChunk, event).text)
            case _:
                self._current(event).finish()
                self._streamed = None

    async def _whole(self, request: Synthesize, workers: list[SpeechWorker]) -> None:
        _check_format(request)
        self._check_length(len(request.text))
        worker, voice = await asyncio.to_thread(choose_voice, workers, request.voice)
        self._replies.add(WholeReply(self._connection, worker, voice, request.text))

    async def _start(self, request: SynthesizeStart, workers: list[SpeechWorker]) -> None:
        if self._streamed is not None:
            raise ApiError(400, "synthesize-start: the last text has no synthesize-stop", INVALID)
        _check_format(request)
        worker, voice = await asyncio.to_thread(choose_voice, workers, request.voice)
        reply = StreamedReply(self._connection, worker, voice, self._threads)
        self._replies.add(reply)
        self._streamed = reply

    def _add(self, reply: StreamedReply, text: str) -> None:
        self._check_length(reply.characters + len(text))
        reply.add(text)

    def _current(self, event: Event) -> StreamedReply:
        if self._streamed is None:
            raise ApiError(400, f"{event.type}: expected synthesize-start before it", INVALID)
        return self._streamed

    def _check_length(self, characters: int) -> None:
        most = self._limits.text_characters
        if characters > most:
            raise ApiError(
                400, f"text: has more than {most} characters; split it", "string_above_max_length", "text"
            )


def _check_format(request: Synthesize | SynthesizeStart) -> None:
    if request.text_format not in (None, SynthesizeTextFormat.TEXT):
        raise ApiError(400, "text_format: expected text", "invalid_value", "text_format")
