"""`Utterances`: the live audio of one socket, as a series of jobs."""

import asyncio
import base64
import binascii
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.files import SAMPLE_BYTES, from_pcm16
from voxport.runtime.audio.sources import Converter
from voxport.runtime.serve.errors import ApiError, from_exception
from voxport.runtime.serve.realtime.connection import TRY_LATER, SessionContext, SocketClosed, SocketError
from voxport.runtime.serve.transcription.job import TranscriptionJob
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.speech_to_text import TranscriptDelta


@dataclass
class Utterance:
    """Audio up to a commit. `text` grows while it is transcribed."""

    number: int
    job: TranscriptionJob
    converter: Converter
    rate: int
    text: str = ""
    samples: int = 0  # received, at `rate`
    reading: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def seconds(self) -> float:
        return self.samples / self.rate


class UtteranceHandler(Protocol):
    """Receives new text, the whole text, or an error."""

    async def on_delta(self, utterance: Utterance, delta: TranscriptDelta) -> None: ...

    async def on_end(self, utterance: Utterance, text: str) -> None: ...

    async def on_job_error(self, utterance: Utterance, error: ApiError) -> None: ...


def decode_pcm(text: object) -> np.ndarray:
    """Base64 of 16-bit little-endian samples -> float32 [n], n at least 1. Raises ApiError."""
    if not isinstance(text, str):
        raise ApiError(400, "audio: expected base64 of 16-bit samples", "invalid_audio", "audio")
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, "audio: is not base64", "invalid_audio", "audio") from None
    if not content or len(content) % SAMPLE_BYTES:
        found = f"{len(content)} bytes"
        raise ApiError(400, f"audio: {found}, expected whole 16-bit samples", "invalid_audio", "audio")
    return from_pcm16(content)


class Utterances:
    """Transcribes utterances one after another in one live stream.

    Audio of the next utterance is accepted while one finishes. The times of words count from the start of the
    utterance.
    """

    def __init__(
        self,
        context: SessionContext,
        worker: TranscriptionWorker,
        numbers: Iterator[int],
        handler: UtteranceHandler,
    ):
        """`numbers` yields the numbers of the session's utterances."""
        self._context, self.worker, self._numbers, self._handler = context, worker, numbers, handler
        self.current: Utterance | None = None
        self._all: list[Utterance] = []  # that are not transcribed to their end
        self._refusal: ApiError | None = None  # for the utterance whose audio arrives

    @property
    def are_pending(self) -> bool:
        """Whether the text of an utterance is not sent yet."""
        return bool(self._all)

    async def begin(self, rate: int, delay_ms: int | None) -> Utterance:
        """Starts an utterance of audio at `rate`. Waits while two others are not transcribed to their end.

        Raises ApiError if no live stream is free, and SocketError if the wait takes too long. The rest of an
        utterance that is refused is refused as well.
        """
        if self._refusal:
            raise self._refusal
        if len(self._all) > 1:
            await self._with_timeout(self._wait_for_previous())
        try:
            job = self.worker.submit_live(self._context.key, delay_ms, self)
        except UsageError as error:
            raise from_exception(error) from None
        except ApiError as error:
            self._refusal = error
            raise
        converter = Converter(rate, self.worker.task.sample_rate)
        utterance = Utterance(next(self._numbers), job, converter, rate)
        utterance.reading = asyncio.create_task(self._read(utterance))
        self._all.append(utterance)
        self.current = utterance
        return utterance

    async def append(self, samples: np.ndarray) -> None:
        """samples float32 [n] of the current utterance. Waits while too much audio is ahead.

        Raises SocketError if that takes too long.
        """
        assert self.current is not None
        utterance = self.current
        utterance.samples += len(samples)
        utterance.job.feed(utterance.converter.feed(samples))
        if utterance.job.is_full:
            await self._with_timeout(utterance.job.wait_for_room())

    async def _wait_for_previous(self) -> None:
        """Returns when another utterance may begin."""
        while len(self._all) > 1 and self._all[0].reading:
            await asyncio.wait((self._all[0].reading,))

    async def _with_timeout(self, waiting: Coroutine[object, object, None]) -> None:
        """Awaits `waiting` for at most `ahead_s`. Raises SocketError."""
        ahead_s = self._context.limits.ahead_s
        try:
            async with asyncio.timeout(ahead_s):
                await waiting
        except TimeoutError:
            message = f"audio is more than {ahead_s:g} s ahead of its transcription"
            raise SocketError(ApiError(503, message, "audio_too_far_ahead"), TRY_LATER) from None

    def finish(self) -> Utterance | None:
        """Ends the current utterance; its text is complete later. Raises ApiError if it was refused."""
        self.check_refused()
        utterance, self.current = self.current, None
        if utterance:
            utterance.job.feed(utterance.converter.finish())
            utterance.job.finish()
        return utterance

    def check_refused(self) -> None:
        """Raises ApiError if the audio since the last utterance was refused.

        The next audio begins another one.
        """
        refusal, self._refusal = self._refusal, None
        if refusal:
            raise refusal

    def clear(self) -> None:
        """Cancels the current utterance."""
        self._refusal = None
        utterance, self.current = self.current, None
        if utterance:
            self._cancel(utterance)

    def close(self) -> None:
        for utterance in list(self._all):
            self._cancel(utterance)

    def _cancel(self, utterance: Utterance) -> None:
        utterance.job.cancel()
        if utterance.reading:
            utterance.reading.cancel()
        if utterance in self._all:
            self._all.remove(utterance)

    async def _read(self, utterance: Utterance) -> None:
        try:
            while (delta := await utterance.job.read()) is not None:
                text = delta.text if utterance.text else delta.text.lstrip()
                utterance.text += text
                if text or delta.words:
                    await self._handler.on_delta(utterance, TranscriptDelta(text, delta.words))
            if not utterance.text.strip():
                utterance.job.reason_without_text()
            await self._handler.on_end(utterance, utterance.text.strip())
        except ApiError as error:
            if self.current is utterance:
                self._refusal = error
            with suppress(SocketClosed):
                await self._handler.on_job_error(utterance, error)
        except SocketClosed:
            pass  # `Connection.receive` raises it in the session, too
        finally:
            utterance.job.cancel()
            if utterance in self._all:
                self._all.remove(utterance)
            if self.current is utterance:
                self.current = None
