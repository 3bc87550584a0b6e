"""Languages of Qwen3-TTS: its names for codes of ISO 639, and how long speech usually takes."""

from bundle.errors import UsageError
from runtime.families.qwen3_tts.constants import Constants
from runtime.text.language import NAMES

NAME_OF_CODE = {code: name for name, code in NAMES.items()}
# Frames of 80 ms. English speech has about 15 letters a second, Chinese about 4.5 characters.
FRAMES_PER_LETTER, FRAMES_PER_WIDE_LETTER = 0.83, 2.8
FIRST_WIDE = "\u3000"  # from here on: Japanese, Chinese and Korean scripts


def language_name(code: str, constants: Constants) -> str:
    """The model's name of a language by its code. Raises UsageError that lists the codes."""
    name = NAME_OF_CODE.get(code, "")
    if name not in constants.codec_language_id:
        codes = [code for name, code in NAMES.items() if name in constants.codec_language_id]
        raise UsageError(
            f"language {code!r}: this model does not speak it; it has {', '.join(codes)}", field="language"
        )
    return name


def usual_frames(text: str) -> float:
    """Frames that the speech of a text usually takes."""
    wide = sum(letter >= FIRST_WIDE for letter in text)
    return FRAMES_PER_WIDE_LETTER * wide + FRAMES_PER_LETTER * (len(text) - wide)
