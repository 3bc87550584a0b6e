"""Constants of Qwen3-ASR and its forced aligner."""

from typing import Annotated, Literal

from pydantic import Field

from voxport.bundle.bounds import Count, HopLength, Id, MelBins, SampleRate, WindowSize
from voxport.bundle.manifest import FamilyConstants

# ISO 639 codes of the names of languages, in the order of the published configuration
CODES = {
    "Chinese": "zh",
    "English": "en",
    "Cantonese": "yue",
    "Arabic": "ar",
    "German": "de",
    "French": "fr",
    "Spanish": "es",
    "Portuguese": "pt",
    "Indonesian": "id",
    "Italian": "it",
    "Korean": "ko",
    "Russian": "ru",
    "Thai": "th",
    "Vietnamese": "vi",
    "Japanese": "ja",
    "Turkish": "tr",
    "Hindi": "hi",
    "Malay": "ms",
    "Dutch": "nl",
    "Swedish": "sv",
    "Danish": "da",
    "Finnish": "fi",
    "Polish": "pl",
    "Czech": "cs",
    "Filipino": "fil",
    "Persian": "fa",
    "Greek": "el",
    "Romanian": "ro",
    "Hungarian": "hu",
    "Macedonian": "mk",
}
LANGUAGES = tuple(sorted(CODES.values()))
ENCODER, ALIGN = "audio_encoder", "align"


class AlignerConstants(FamilyConstants):
    """What an aligner adds: `timestamp_id` marks a time in its input; its classes are steps of `step_ms`."""

    timestamp_id: Id
    classes: Count
    step_ms: Count


class Qwen3ASRConstants(FamilyConstants):
    """`constants` of the manifest.

    A chunk of `chunk_frames` log-mel frames gives `chunk_rows` rows. The rows of `window_chunks` chunks see
    each other. `end_ids` end a text. `languages` are names that the model writes and takes.
    """

    sample_rate: SampleRate
    n_mels: MelBins
    hop_length: HopLength
    window_size: WindowSize
    chunk_frames: Count
    chunk_rows: Count
    window_chunks: Count
    dim: Count
    vocab_size: Count
    im_start_id: Id
    im_end_id: Id
    audio_start_id: Id
    audio_end_id: Id
    audio_pad_id: Id
    asr_text_id: Id
    end_ids: Annotated[tuple[Id, ...], Field(min_length=1)]
    languages: tuple[str, ...]
    kind: Literal["recogniser", "aligner"]
    aligner: AlignerConstants | None = None
