"""`SpeechSettings`: what the fields of a request mean for the model that speaks."""

import asyncio
import base64
import binascii
import re
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.aliases import ChosenVoice
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import UNSUPPORTED, SpeechFields
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.encoders import Encoder, make_encoder
from voxport.runtime.serve.speech.job import SpeechJob
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.voices.api import MAKER
from voxport.runtime.speech_request import SpeechOptions

PARAMS = {"text": "input", "instruct": "instructions"}  # our names of fields that the API names otherwise
REFERENCE = "ref_audio"
DATA_URL = re.compile(r"data:[^,]{0,100};base64,")
PCM_RATE = 24_000  # Hz, which clients assume
CHUNK_FRAMES = 1  # 80 ms each: the first samples come after one frame


class SpeechSettings(NamedTuple):
    body: SpeechFields
    worker: SpeechWorker
    voice: ChosenVoice
    options: SpeechOptions

    @property
    def sample_rate(self) -> int:
        """The rate of the sound that is sent, in Hz."""
        own = PCM_RATE if self.body.response_format == "pcm" else self.worker.task.sample_rate
        return self.body.sample_rate or own

    def encoder(self, has_float_pcm: bool = False) -> Encoder:
        """Makes an encoder. Raises UsageError if the speed cannot be changed."""
        form, rate = self.body.response_format, self.worker.task.sample_rate
        return make_encoder(form, rate, self.sample_rate, self.body.speed, has_float_pcm)

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
    if body.response_format != "pcm" and body.sample_rate not in (None, task.sample_rate):
        message = (
            f"sample_rate: speech of {worker.name} has {task.sample_rate} Hz, only pcm may have another rate"
        )
        raise ApiError(400, message, UNSUPPORTED, "sample_rate")
    if body.instructions and not task.follows_instructions:
        body.ignore("instructions", "the model follows none; leave them out", "invalid_value")
    if language and not body.is_taken("language", partial(task.check_language, language)):
        language = None
    unused = {
        "ref_text": body.ref_text and not body.ref_audio,
        "voice": body.voice and body.ref_audio,
        "voice_id": body.voice_id and (body.voice or body.ref_audio),
    }
    for name in filter(unused.get, unused):
        body.ignore(name)
    if body.ref_audio:
        voice = ChosenVoice(None, await _reference_voice(body, worker, stack))
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


async def _reference_voice(body: SpeechFields, worker: SpeechWorker, stack: ExitStack) -> str:
    """The path of a voice file made from `ref_audio`, for this request only: `stack` deletes it.

    Raises ApiError.
    """
    if not worker.clones:
        reason = f"{REFERENCE}: {worker.name} makes no voices from recordings; leave it out and name a voice"
        raise ApiError(400, reason, "voices_not_supported", REFERENCE)
    text = DATA_URL.sub("", body.ref_audio or "", count=1)
    try:
        content = await asyncio.to_thread(base64.b64decode, text, validate=True)
    except (binascii.Error, ValueError):
        reason = f"{REFERENCE}: is not base64; expected base64 of a recording, or a data URL of it"
        raise ApiError(400, reason, "invalid_audio", REFERENCE) from None
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="voxport-")))
    recording, voice = folder / "recording", folder / "voice.safetensors"
    recording.write_bytes(content)
    voice.write_bytes(await MAKER.make(worker, recording, body.ref_text, REFERENCE))
    return str(voice)
