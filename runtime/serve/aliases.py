"""`Aliases`: names of models and voices of other services, and what they mean on this server."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from voxport.bundle.errors import UsageError
from voxport.bundle.names import find_name
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.voices.store import StoredVoice, VoiceStore

SPEECH_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "voxtral-mini-tts-latest")
TRANSCRIPTION_MODELS = (
    "whisper-1",
    "gpt-transcribe",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-realtime-whisper",
    "gpt-live-transcribe",
    "voxtral-mini-latest",
    "voxtral-mini-transcribe-latest",
    "voxtral-mini-transcribe-realtime-latest",
)
VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)
MISTRAL_VOICES = ("en_paul_neutral", "gb_jane_neutral", "gb_oliver_neutral", "fr_marie_neutral")
VERSION = re.compile(r"-(latest|\d{4}-\d\d-\d\d|\d+)$")
MOOD = re.compile(r"_[a-z]+$")  # of a voice of Mistral
MAX_LISTED = 10  # names in a message


def listed(names: Iterable[str]) -> str:
    """Names for a message, the first ones if there are many."""
    known = list(names)
    more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
    return (", ".join(known[:MAX_LISTED]) or "none") + more


def spellings(name: str) -> Iterator[str]:
    """The name, and the name without its provider, as in `openai/whisper-1`."""
    yield name
    if (short := re.split("[/:]", name)[-1]) != name:
        yield short


def is_one_of(name: str, standard: tuple[str, ...]) -> bool:
    """Whether one of the `standard` models has the name, in any case and of any version."""
    known = {*standard, *(VERSION.sub("", each) for each in standard if each.endswith("-latest"))}
    return any(each.lower() in known or VERSION.sub("", each.lower()) in known for each in spellings(name))


class ChosenVoice(NamedTuple):
    """`name` says who speaks; None if the model chooses.

    `voice` is for the engine: the name, or the path of a stored voice.
    """

    name: str | None
    voice: str | None


@dataclass(frozen=True)
class Aliases:
    """Further names that the operator gives to bundles and to voices."""

    models: Mapping[str, str] = field(default_factory=dict)
    voices: Mapping[str, str] = field(default_factory=dict)

    def check(self, bundles: Iterable[str], aligners: Collection[str] = ()) -> None:
        """Raises UsageError on an alias of a bundle that is not served, or that is the name of one."""
        known = list(bundles)
        for alias, bundle in self.models.items():
            if bundle not in known or alias in (*known, *aligners):
                reason = f"expected another name, and one of {', '.join(known)} behind it"
                raise UsageError(f"alias: {alias}={bundle}: {reason}", field="alias")

    def unknown_voices(self, workers: Collection[SpeechWorker], store: VoiceStore | None) -> list[str]:
        """The aliases of voices that no bundle has and no client has made, or several clients."""

        def is_known(voice: str) -> bool:
            try:
                return any(
                    find_voice(voice, each.task.bundle_voices(), store.of(each.name) if store else [])
                    for each in workers
                )
            except ApiError:
                return False

        return [alias for alias, voice in self.voices.items() if not is_known(voice)]

    def voice(self, name: str | None, worker: SpeechWorker, store: VoiceStore | None) -> ChosenVoice:
        """The voice that a request means. Private voices of the operator are not among them.

        A model that has no voices chooses one, if the name is of another service. Raises ApiError on any
        other name.
        """
        if name is None:
            default = worker.default_voice()
            return ChosenVoice(default, default)
        stored = store.of(worker.name) if store else []
        voices = worker.task.bundle_voices()
        name = list(spellings(name))[-1] if "/" in name else name
        for wanted in (name, self.voices.get(find_name(name, self.voices))):
            if wanted is not None and (found := find_voice(wanted, voices, stored)):
                return found
        index, known = _standard_index(name), [*voices, *(each.name for each in stored)]
        if index is not None and voices:
            chosen = voices[index % len(voices)]
            return ChosenVoice(chosen, chosen)
        if index is not None and worker.chooses_voice:
            return ChosenVoice(None, None)
        if known:
            reason = f"expected one of {listed(known)}"
        elif worker.chooses_voice:
            reason = f"{worker.name} has no voices; leave voice out and describe it in instructions"
        else:
            advice = "make one with POST /v1/audio/voices" if store else "give ref_audio, or --voices"
            reason = f"{worker.name} has no voices; {advice}"
        raise ApiError(400, f"voice: {reason}", "voice_not_found", "voice")

    def of_voices(self, worker: SpeechWorker, store: VoiceStore | None) -> dict[str, str]:
        """Names of the operator and of other services, and the voice that each one means."""
        found = {}
        for alias in (*self.voices, *VOICES, *MISTRAL_VOICES):
            try:
                name = self.voice(alias, worker, store).name
            except ApiError:
                continue
            if name is not None and name != alias:
                found[alias] = name
        return found


def find_voice(name: str, voices: list[str], stored: list[StoredVoice]) -> ChosenVoice | None:
    """A voice of the bundle by its name, a stored one by its id or name. Raises ApiError if several match."""
    wanted = find_name(name, voices)
    if wanted in voices:
        return ChosenVoice(wanted, wanted)
    alike = [each for each in stored if name == each.id] or [
        each for each in stored if name.casefold() == each.name.casefold()
    ]
    if len(alike) > 1:
        ids = listed(each.id for each in alike)
        raise ApiError(
            400, f"voice: several voices are named {name[:50]!r}: {ids}", "voice_not_found", "voice"
        )
    return ChosenVoice(alike[0].id, str(alike[0].path)) if alike else None


def _standard_index(name: str) -> int | None:
    name = name.lower()
    if name in VOICES:
        return VOICES.index(name)
    speakers = [MOOD.sub("", each) for each in MISTRAL_VOICES]
    speaker = MOOD.sub("", name)
    return speakers.index(speaker) if speaker in speakers else None
