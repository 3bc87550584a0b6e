"""The answer to `describe`, and the choice of a voice."""

from collections.abc import Iterable
from contextlib import suppress

from wyoming.info import AsrModel, AsrProgram, Attribution, Info, TtsProgram, TtsVoice
from wyoming.tts import SynthesizeVoice

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.text_to_speech import TextToSpeech

DEFAULT_VOICE = "default"  # for a bundle without voices: clients show no program without one
DEFAULT_LANGUAGE = "en"
VOXPORT = Attribution("voxport", "")


def describe(models: Models) -> Info:
    """Clients take the first program of each kind."""
    return Info(
        tts=[_tts(worker) for worker in models.speech_workers.values()],
        asr=[_asr(worker) for worker in models.transcription_workers.values()],
    )


def _tts(worker: SpeechWorker) -> TtsProgram:
    voices = [
        TtsVoice(voice, VOXPORT, True, f"{voice} of {worker.name}", None, [_language(worker.task, voice)])
        for voice in _voices(worker.task)
    ]
    description = f"Text to speech of {worker.name}"
    return TtsProgram(
        worker.name, VOXPORT, True, description, None, voices, supports_synthesize_streaming=True
    )


def _asr(worker: TranscriptionWorker) -> AsrProgram:
    description = f"Speech to text of {worker.name}"
    model = AsrModel(worker.name, VOXPORT, True, description, None, list(worker.task.languages))
    return AsrProgram(
        worker.name,
        VOXPORT,
        True,
        description,
        None,
        [model],
        supports_transcript_streaming=True,
        requires_external_vad=True,
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
