"""The voice of a recording that comes with a request. It is kept for that request only."""

import asyncio
import base64
import binascii
import re
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import SpeechFields
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.voices.api import VoiceMaker

FIELD = "ref_audio"
DATA_URL = re.compile(r"data:[^,]{0,100};base64,")
MAKER = VoiceMaker()


async def reference_voice(body: SpeechFields, worker: SpeechWorker, stack: ExitStack) -> str:
    """The path of a voice file made from `ref_audio`, which `stack` deletes. Raises ApiError."""
    if not can_clone(worker):
        reason = f"{FIELD}: {worker.name} makes no voices from recordings; leave it out and name a voice"
        raise ApiError(400, reason, "voices_not_supported", FIELD)
    text = DATA_URL.sub("", body.ref_audio or "", count=1)
    try:
        content = await asyncio.to_thread(base64.b64decode, text, validate=True)
    except (binascii.Error, ValueError):
        reason = f"{FIELD}: is not base64; expected base64 of a recording, or a data URL of it"
        raise ApiError(400, reason, "invalid_audio", FIELD) from None
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="voxport-")))
    recording, voice = folder / "recording", folder / "voice.safetensors"
    recording.write_bytes(content)
    voice.write_bytes(await MAKER.make(worker, recording, body.ref_text, FIELD))
    return str(voice)


def can_clone(worker: SpeechWorker) -> bool:
    """Whether the model makes voices from recordings."""
    try:
        worker.task.check_cloning()
    except UsageError:
        return False
    return True
