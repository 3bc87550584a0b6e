"""What a model speaks or hears while it is calibrated: built in, or the user's."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.export.calibration.store import read_calibration
from voxport.export.evaluation.sentences import Sentence, read_sentences
from voxport.export.resolve import Resolved
from voxport.runtime.families import open_family
from voxport.runtime.speech_to_text import SpeechToText

# Written for this project. A voice whose name begins with a code speaks that language, others English.
TEXTS = {
    "en": (
        "The baker opens at six, and by seven the good rolls are gone.",
        "Could you forward me the invoice from March, please?",
        "Seventeen geese crossed the frozen lake without a sound.",
        "No, I said Thursday; Friday is the dentist.",
        "Thick fog delayed every flight out of Zurich this morning!",
        "He hummed, poured the tea and looked for his glasses.",
    ),
    "fr": ("Le train de huit heures est encore en retard.", "Où avez-vous acheté ce joli manteau bleu ?"),
    "de": ("Der Schlüssel liegt unter dem Blumentopf.", "Wann fährt der nächste Bus nach Köln?"),
    "es": ("Mañana compraremos naranjas en el mercado.", "¿Quién ha dejado la ventana abierta?"),
    "it": ("La nonna prepara il pane ogni domenica.", "Quanto costa un biglietto per Firenze?"),
    "pt": ("O barco chegou antes da chuva.", "Você viu o meu guarda-chuva amarelo?"),
    "nl": ("De fiets staat achter het huis.", "Hoe laat begint de voorstelling?"),
    "ar": ("القطار يصل في الساعة الثامنة.",),
    "hi": ("आज मौसम बहुत सुहावना है।",),
    "zh": ("明天早上我们一起去公园散步。",),
    "ja": ("駅の前に新しい本屋ができました。",),
}
STATISTICS = ".safetensors"
# No embedded model was trained on these sentences, and `evaluate` has others.
RECORDINGS = Path(__file__).parent / "recordings"
LARGE_RECORDINGS = 4  # a step of a large model takes two seconds
LEAST_SENTENCES = 2
RATE, SILENCE = 16_000, 10 ** (-50 / 20)  # Hz, and the peak below which a recording says nothing


@dataclass(frozen=True)
class CalibrationData:
    """Sentences to speak, or recordings to hear. `sha256` is the hash of all of it."""

    sentences: Sequence[Sentence]
    sha256: str

    def to_json(self) -> Json:
        """What it is, for people."""
        names = [str(each.recording or each.name) for each in self.sentences]
        texts = [each.text for each in self.sentences]
        return {"sha256": self.sha256, "sentences": [list(each) for each in zip(names, texts, strict=True)]}


def data_of(resolved: Resolved, given: Path) -> CalibrationData:
    """The user's data, or the built-in data if the path is empty. Raises UsageError.

    Statistics of an earlier calibration have no sentences, and the hash of those that they were made from.
    """
    if given.suffix == STATISTICS:
        found = read_calibration(given)
        return CalibrationData([], found.data or found.sha256)
    source = resolved.source
    if given != Path():
        return from_folder(given, is_listener(resolved))
    return built_in(is_listener(resolved), source.languages, source.is_large)


def is_listener(resolved: Resolved) -> bool:
    """Whether the model has recordings as its input, and not texts."""
    return issubclass(open_family(resolved.source.family.name).task, SpeechToText)


def built_in(listens: bool, languages: Sequence[str], is_large: bool = False) -> CalibrationData:
    """Recordings for a model that listens, texts in its languages for one that speaks."""
    if listens:
        return _hashed(read_sentences(RECORDINGS, LARGE_RECORDINGS if is_large else None))
    spoken = [language for language in TEXTS if language in languages] or ["en"]
    count = 1 if is_large and len(spoken) > 1 else None
    texts = [(language, text) for language in spoken for text in TEXTS[language][:count]]
    return _hashed([Sentence(language, text) for language, text in texts])


def from_folder(path: Path, listens: bool) -> CalibrationData:
    """The user's sentences: a text file, or a folder with recordings. Raises UsageError."""
    try:
        return _hashed(_checked(path, listens))
    except UsageError as error:
        error.field = "calibrate"
        raise


def _checked(path: Path, listens: bool) -> list[Sentence]:
    if listens and path.is_file():
        raise UsageError(
            f"{path}: is a file, and this model hears; expected a folder of recordings with their texts"
        )
    sentences = read_sentences(path)
    if len(sentences) < LEAST_SENTENCES:
        raise UsageError(
            f"{path}: has {len(sentences)} sentence, which gives too few rows; expected at least "
            f"{LEAST_SENTENCES}"
        )
    for sentence in sentences:
        is_heard = listens or sentence.recording  # a voice may be made from it
        if is_heard and np.abs(sentence.samples(RATE)).max(initial=0.0) < SILENCE:
            raise UsageError(f"{sentence.recording}: is silent; leave it out")
    return sentences


def _hashed(sentences: list[Sentence]) -> CalibrationData:
    found = hashlib.sha256(json.dumps([(each.name, each.text) for each in sentences]).encode())
    for sentence in sentences:
        if sentence.recording:
            found.update(sentence.recording.read_bytes())
    return CalibrationData(sentences, found.hexdigest())
