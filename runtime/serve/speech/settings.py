"""`SpeechSettings`: what the fields of a request mean for the model that speaks."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.aliases import ChosenVoice
from voxport.runtime.serve.errors import ApiError, from_exception
from voxport.runtime.serve.fields import SpeechFields
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.encoders import Encoder, make_encoder
from voxport.runtime.serve.speech.job import SpeechJob
from voxport.runtime.serve.speech.reference import reference_voice
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.speech_request import SpeechOptions

PARAMS = {"text": "input", "instruct": "instructions"}  # our names of fields that the API names otherwise
CHUNK_FRAMES = 1  # 80 ms each: the first samples come after one frame


class SpeechSettings(NamedTuple):
    body: SpeechFields
    worker: SpeechWorker
    voice: ChosenVoice
    options: SpeechOptions

    def encoder(self, has_float_pcm: bool = False) -> Encoder:
        """Makes an encoder. Raises ApiError."""
        try:
            rate = self.worker.task.sample_rate
            return make_encoder(self.body.response_format, rate, self.body.speed, has_float_pcm)
        except UsageError as error:
            raise from_exception(error) from None

    async def submit(self, text: str | Iterable[str], threads: Executor | None = None) -> SpeechJob:
        """Queues a text. Raises ApiError. `threads` as in `SpeechWorker.prepare`."""
        prepare = partial(self.worker.prepare, text, self.options, threads)
        try:
            return self.worker.submit(await asyncio.get_running_loop().run_in_executor(threads, prepare))
        except UsageError as raised:
            # no path of a stored voice
            message = str(raised).replace(self.voice.voice or "\0", self.voice.name or "ref_audio")
            field = raised.field or "input"
            name = PARAMS.get(field, field)
            if field in PARAMS:
                rest = message.removeprefix(field)
                message = f"{name}{rest}" if rest != message else f"{name}: {message}"
            raise ApiError(400, message, "invalid_value", name) from None


async def settings_of(body: SpeechFields, models: Models, stack: ExitStack) -> SpeechSettings:
    """`stack` deletes the voice of a recording. Raises ApiError."""
    worker = models.speech_worker(body.model)
    worker.check_room()  # before any other work
    task, language = worker.task, body.language
    if body.instructions and not task.follows_instructions:
        body.ignore("instructions", "the model follows none; leave them out", "invalid_value")
    if language and not body.is_taken("language", partial(task.check_language, language)):
        language = None
    if body.ref_audio:
        voice = ChosenVoice(None, await reference_voice(body, worker, stack))
    else:
        voice = models.aliases.voice(body.voice_name, worker, models.voices)
        if body.voice_name and voice.name is None:
            body.ignore("voice", "the model has no voices; describe one in instructions", "invalid_value")
    options: SpeechOptions = {
        "seed": body.seed,
        "chunk_frames": CHUNK_FRAMES,
        "voice": voice.voice,
        "language": language,
        "instruct": body.instructions if task.follows_instructions else None,
        "store_prefix": voice.name == voice.voice,  # a stored voice may be deleted
    }
    return SpeechSettings(body, worker, voice, options)
