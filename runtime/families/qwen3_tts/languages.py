"""Languages of Qwen3-TTS: its names and the codes of ISO 639, and how long speech usually takes."""

from voxport.bundle.constants.qwen3_tts import Constants
from voxport.bundle.errors import UsageError
from voxport.bundle.names import NAMES, language_code
from voxport.runtime.text.languages import AUTO

NAME_OF_CODE = {code: name for name, code in NAMES.items()}
# Frames of 80 ms. English speech has about 15 letters a second, Chinese about 4.5 characters.
FRAMES_PER_LETTER, FRAMES_PER_WIDE_LETTER = 0.83, 2.8
DIALECT = "_dialect"  # ends the names of dialects, all of Chinese
FIRST_WIDE = "\u3000"  # from here on: Japanese, Chinese and Korean scripts


def language_name(language: str, constants: Constants) -> str:
    """The model's name of a language, or `auto`, by either of them or by a code.

    Raises UsageError that lists names and codes.
    """
    known, name = constants.codec_language_id, str(language).lower()
    if name == AUTO or name in known:
        return name
    name = NAME_OF_CODE.get(language_code(name) or "", "")
    if name not in known:
        codes = [code for name, code in NAMES.items() if name in known]
        raise UsageError(
            f"language {language!r}: this model does not speak it; it has "
            f"{', '.join([AUTO, *sorted(known), *codes])}",
            field="language",
        )
    return name


def code_of_name(name: str) -> str | None:
    """ISO 639 code of a language by the model's name; None for `auto`, and if there is none."""
    return "zh" if name.endswith(DIALECT) else NAMES.get(name)


def estimated_frames(text: str) -> float:
    """Frames that the speech of a text usually takes."""
    wide = sum(letter >= FIRST_WIDE for letter in text)
    return FRAMES_PER_WIDE_LETTER * wide + FRAMES_PER_LETTER * (len(text) - wide)
