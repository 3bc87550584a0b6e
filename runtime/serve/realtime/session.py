"""`Connection`: one socket. `Session`: its live audio, as part after part, in one of three dialects."""

import asyncio
import logging
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from voxport.runtime.audio.silero import RATE
from voxport.runtime.audio.sources import Converter
from voxport.runtime.audio.turns import TurnAudio, TurnDetector, TurnSettings
from voxport.runtime.serve.errors import ApiError, SessionEnds
from voxport.runtime.serve.fields import UNSUPPORTED, RequestFields, parse_message
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.connection import Connection, Message, SocketClosed
from voxport.runtime.serve.realtime.input_audio import InputAudio, decode_audio
from voxport.runtime.serve.session_clock import SessionState
from voxport.runtime.serve.transcription.job import too_far_ahead
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.speech_to_text import TranscriptDelta, TranscriptionOptions

NORMAL, INTERNAL = 1000, 1011  # codes with which a socket is closed
CLOSE_CODES = {"message_too_large": 1009, "server_shutting_down": 1012, "audio_too_far_ahead": 1013}
UpdateFields = TypeVar("UpdateFields", bound=RequestFields)
FORMAT_WORDS = re.compile("format|encoding|rate|channel|codec")
UPDATES = "session.update", "transcription_session.update"
log = logging.getLogger(__name__)


class SocketSession(SessionState, Protocol):
    """What a client and the server say on a socket."""

    connection: Connection
    events: ClassVar[Mapping[str, tuple[str, ...] | None]]  # fields of each event; None: it checks its own

    async def handle(self, message: Message) -> None:
        """Raises ApiError on a message that is wrong."""

    async def send_error(self, error: ApiError, message: Message) -> None:
        """`message` is the one that was wrong."""

    def close(self) -> None:
        """Ends what runs."""


class Session(SocketSession):
    """Transcribes audio, one part after another, in one live stream. Clients or `turns` divide it.

    Audio of the next part is accepted while one finishes. `worker` is the model, `current` the part that
    arrives.
    """

    max_append: int | None = None  # bytes of audio in a message

    def __init__(self, connection: Connection, models: Models):
        self.connection, self.models = connection, models
        self.worker: TranscriptionWorker | None = None
        self.current: InputAudio | None = None
        self.turns: TurnDetector | None = None  # None if the client alone ends its audio
        self.hints = TranscriptionOptions()  # language and context of the parts that begin
        self._format_error: ApiError | None = None  # of an update that was refused
        self._pending: list[InputAudio] = []  # whose text is not sent yet
        self._refusal: ApiError | None = None  # for the audio that arrives; the client has got it
        self._parts = self._events = 0  # so far

    async def handle(self, message: Message) -> None:
        """If an update with a format of audio is refused, audio is refused until a later update is right."""
        try:
            await self.react(message)
        except ApiError as error:
            if message["type"] in UPDATES and _names_format(message):
                reason = f"audio is refused until its format is right. {error.message}"
                self._format_error = ApiError(400, reason, error.code, error.param)
            raise

    @abstractmethod
    async def react(self, message: Message) -> None:
        """Does what the message says. Raises ApiError if it is wrong."""

    @abstractmethod
    async def on_delta(self, audio: InputAudio, delta: TranscriptDelta) -> None:
        """Sends new text."""

    @abstractmethod
    async def on_end(self, audio: InputAudio) -> None:
        """Sends the whole text."""

    async def on_failure(self, audio: InputAudio, error: ApiError) -> None:
        """Sends the error that ended a part."""
        await self.send_error(error, {})

    async def on_turn_start(self, audio: InputAudio, start_ms: int) -> None:
        """Speech was found."""

    async def on_turn_end(self, audio: InputAudio, turn: TurnAudio) -> None:
        """A pause was found, or no speech for a time that the client sets."""

    @property
    def is_busy(self) -> bool:
        return bool(self._pending)

    @property
    def is_incomplete(self) -> bool:
        return self.current is not None

    def event_id(self) -> str:
        self._events += 1
        return f"event_{self.connection.number}_{self._events}"

    def use(self, model: str) -> TranscriptionWorker:
        """Transcribes with a model from now on.

        Raises ApiError if it is no model for live audio, or audio of another model is still transcribed.
        """
        worker = self.models.live_worker(model)
        if self._pending and worker is not self.worker:
            raise ApiError(400, "the model cannot change while audio is transcribed", "session_busy")
        self.worker = worker
        return worker

    def parse_update(self, kind: type[UpdateFields], message: Message) -> UpdateFields:
        """The fields of an update. Raises ApiError."""
        fields = parse_message(kind, message, self.models.is_strict)
        for name in fields.ignored:
            if FORMAT_WORDS.search(name):
                raise ApiError(400, f"{name}: is not known; leave it out", UNSUPPORTED, name)
        self._format_error = self._refusal = None
        return fields

    def detect_turns(self, rate: int, settings: TurnSettings | None) -> None:
        """Looks for turns in audio at `rate` from now on; None ends that."""
        turns = self.turns
        if settings is None:
            self.turns = None
        elif turns is None or (turns.rate, turns.settings) != (rate, settings):
            self.turns = TurnDetector(settings, rate, turns.position if turns else 0)

    async def append(self, message: Message, encoding: str, rate: int, delay_ms: int | None) -> None:
        """Adds base64 of samples to the current part, or begins one. Waits if too much is ahead.

        Raises ApiError on wrong audio, and once for a part if its format was refused or no live stream is
        free. Raises SessionEnds if the wait takes too long.
        """
        if self._format_error:
            if not self._refusal:
                self._refusal = self._format_error
                raise self._refusal
            return
        await self._add(decode_audio(message.get("audio"), encoding, self.max_append), rate, delay_ms)

    async def _add(self, samples: np.ndarray, rate: int, delay_ms: int | None) -> None:
        if self.turns is None:
            if audio := self.current or await self._begin(rate, delay_ms):
                await self._feed(audio, samples)
            return
        errors: list[ApiError] = []
        step = rate // 10  # seconds: the detector of a socket must not delay the others
        for start in range(0, len(samples), step):
            for turn in self.turns.feed(samples[start : start + step]):
                try:
                    await self._take_turn(turn, delay_ms)
                except ApiError as error:
                    errors.append(error)
            await asyncio.sleep(0)
        if errors:
            raise errors[0]

    async def end_turn(self, delay_ms: int | None) -> None:
        """Makes the audio since the last turn the current part, whose end the client gives."""
        for turn in self.turns.end_turn() if self.turns else ():
            if audio := self.current or await self._begin(RATE, delay_ms):
                await self._feed(audio, turn.samples)

    async def _take_turn(self, turn: TurnAudio, delay_ms: int | None) -> None:
        if turn.start_ms is not None:
            self._refusal = None
            if (audio := await self._begin(RATE, delay_ms)) and not turn.is_silent:
                await self.on_turn_start(audio, turn.start_ms)
        if audio := self.current:
            await self._feed(audio, turn.samples)
        if turn.end_ms is None:
            return
        if audio:
            await self.on_turn_end(audio, turn)
        if self.current:  # it may have failed
            self.finish()
        self._refusal = None

    async def _feed(self, audio: InputAudio, samples: np.ndarray) -> None:
        audio.feed(samples)
        await audio.job.wait_for_room(self.connection.limits.ahead_s)

    async def _begin(self, rate: int, delay_ms: int | None) -> InputAudio | None:
        """Waits while two others are not transcribed to their end.

        Raises ApiError if the part is refused; its rest is discarded, for which this returns None.
        """
        assert self.worker is not None
        if self._refusal:
            return None
        ahead_s = self.connection.limits.ahead_s
        if len(self._pending) > 1:
            await asyncio.wait((self._pending[0].reading,), timeout=ahead_s)
            if len(self._pending) > 1:
                raise too_far_ahead(ahead_s)
        try:
            job = self.worker.submit_live(self, **(self.hints | TranscriptionOptions(delay_ms=delay_ms)))
        except ApiError as error:
            self._refusal = error
            raise
        self._parts += 1
        converter = Converter(rate, self.worker.task.sample_rate)
        self.current = audio = InputAudio(self._parts, job, converter, rate)
        audio.reading = asyncio.create_task(self._read(audio))
        self._pending.append(audio)
        return audio

    def check_refused(self) -> None:
        """Raises ApiError if the audio since the last part was refused. Audio begins the next."""
        refusal, self._refusal = self._refusal, None
        if refusal:
            raise refusal

    def finish(self) -> None:
        """Ends the current part; its text is complete later. Raises ApiError if there is none."""
        self.check_refused()
        audio, self.current = self.current, None
        if audio is None:
            raise ApiError(400, "there is no audio to transcribe", "invalid_audio")
        audio.finish()

    def clear(self) -> None:
        """Cancels the current part."""
        self._refusal = None
        if self.turns:
            self.turns.clear()
        audio, self.current = self.current, None
        if audio:
            audio.job.cancel()
            audio.reading.cancel()
            self._pending.remove(audio)

    def close(self) -> None:
        for audio in self._pending:
            audio.job.cancel()
            audio.reading.cancel()

    async def _read(self, audio: InputAudio) -> None:
        try:
            while (delta := await audio.job.read()) is not None:
                await self.on_delta(audio, delta)
            await self.on_end(audio)
        except ApiError as error:
            if self.current is audio:
                self._refusal = error
            with suppress(SocketClosed):
                await self.on_failure(audio, error)
        except SocketClosed:
            pass  # `Connection.receive` raises it in the session, too
        finally:
            audio.job.cancel()
            if audio in self._pending:
                self._pending.remove(audio)
            if self.current is audio:
                self.current = None


def check_event(session: SocketSession, message: Message) -> None:
    """Notes the unknown fields of a message. Raises ApiError on an unknown event.

    A format of audio is refused, because it belongs to an update.
    """
    if message["type"] not in session.events:
        reason = f"type {message['type'][:50]!r}: is no event of this session"
        raise ApiError(400, reason, "unknown_event", "type")
    if (fields := session.events[message["type"]]) is None:
        return
    unknown = [name for name in message if name not in ("type", "event_id", *fields)]
    if wrong := next(filter(FORMAT_WORDS.search, unknown), None):
        reason = "has no effect here; the update of the session sets the format of audio"
        raise ApiError(400, f"{wrong}: {reason}", "invalid_value", wrong)
    session.connection.unknown.add(unknown)


def _names_format(value: object) -> bool:
    """Whether an object of a message has a key for a format of audio, at any depth."""
    return isinstance(value, dict) and any("format" in key or _names_format(value[key]) for key in value)


async def run_session(
    session: SocketSession,
    greeting: Message | None,
    choose: Callable[[Message], SocketSession] | None = None,
) -> None:
    """Sends the greeting, if there is one, handles messages and closes the socket, whatever happens.

    An error of a message leaves the socket open. `choose` returns the session for the first right message, or
    raises ApiError; `session` answers those before.
    """
    connection, code, reason = session.connection, NORMAL, ""
    try:
        if greeting:
            await connection.send(greeting)
        while True:
            message: Message = {}
            try:
                message = await connection.receive(session)
                if choose:
                    session, choose = choose(message), None
                check_event(session, message)
                await session.handle(message)
            except ApiError as error:
                await session.send_error(error, message)
    except SocketClosed:
        pass
    except SessionEnds as ended:
        reason = ended.error.code or ""
        code = CLOSE_CODES.get(reason, NORMAL)
        with suppress(SocketClosed):
            await session.send_error(ended.error, {})
    except Exception:
        log.exception("a session failed")
        code, reason = INTERNAL, "internal_error"
    finally:
        session.close()
        await connection.close(code, reason)
