"""Teacher forcing: in Qwen3-TTS, codes that are given replace the drawn ones everywhere."""

import pytest
from support.serve.tone_speech import ToneSpeech

from voxport.bundle.errors import UsageError
from voxport.export.evaluation.speech import speak_part
from voxport.runtime.families.qwen3_tts.decoder import END, QwenDecoder
from voxport.runtime.speech_request import SpeechRequest


def _decoder(first_codes: list[int]) -> QwenDecoder:
    """Only the codes that it has drawn."""
    decoder = QwenDecoder.__new__(QwenDecoder)
    decoder._first_codes = list(first_codes)
    return decoder


def test_a_given_code_takes_the_place_of_the_drawn_one() -> None:
    """The repetition penalty, and the text that belongs to a frame, follow from the given codes."""
    for before, chosen, code, after in (
        ([4, 7], 7, 5, [4, 5]),
        ([4, 7], 7, END, [4]),
        ([4], END, 5, [4, 5]),
        ([4], END, END, [4]),
    ):
        decoder = _decoder(before)
        decoder.replace(chosen, code)
        assert decoder._first_codes == after


def test_a_model_without_codes_cannot_be_evaluated() -> None:
    with pytest.raises(UsageError, match="the frames of this model are not codes"):
        speak_part(ToneSpeech(), SpeechRequest("Hello."))
