"""Teacher forcing in Qwen3-TTS: codes that are given replace the drawn ones everywhere."""

from runtime.families.qwen3_tts.decoder import END, SpeechDecoder


def _decoder(first_codes: list[int]) -> SpeechDecoder:
    """Only the codes that it has drawn."""
    decoder = SpeechDecoder.__new__(SpeechDecoder)
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
