"""The tokenizer of speech prompts: text ids and the markers around them."""

from collections.abc import Sequence
from pathlib import Path

from bundle.errors import UsageError, VoxportError
from runtime.text.tokenizer import load_tekken, special_id, tekken_path

MAX_TEXT = (
    500_000  # characters, far above any context; the splitting pattern overflows on a million blanks in a row
)


class SpeechTokenizer:
    """The byte-pair tokenizer of a tekken.json and its speech markers.

    `voice_prefix` + `encode` equal mistral_common's `encode_speech_request`, except that the number of
    [AUDIO] placeholders is the number of voice rows, not the number that tekken.json lists for the voice.
    """

    def __init__(self, path: Path):
        """Raises IntegrityError on a missing or broken file, the older bare-array form, or a missing speech
        marker.
        """
        self._tekken = load_tekken(path)
        self._begin, self._audio, self._begin_audio, self._before_text, self._after_text = (
            special_id(self._tekken, marker, path)
            for marker in ("<s>", "[AUDIO]", "[BEGIN_AUDIO]", "[NEXT_AUDIO_TEXT]", "[REPEAT_AUDIO_TEXT]")
        )

    def voice_prefix(self, rows: int) -> list[int]:
        """[BOS] [BEGIN_AUDIO], an [AUDIO] for each voice row, [NEXT_AUDIO_TEXT].

        Raises VoxportError without a row.
        """
        if rows < 1:
            raise VoxportError(
                f"a voice of {rows} rows cannot start a prompt; expected at least 1 row, name another voice"
            )
        return [self._begin, self._begin_audio, *[self._audio] * rows, self._before_text]

    def encode(self, text: str) -> list[int]:
        """The ids of the text, [REPEAT_AUDIO_TEXT] [BEGIN_AUDIO]. Markers in `text` are read as text.

        Raises UsageError on a text that is too long to tokenize.
        """
        if len(text) > MAX_TEXT:
            raise UsageError(f"the text has {len(text)} characters, expected at most {MAX_TEXT}; split it")
        return [*self._tekken.encode(text, bos=False, eos=False), self._after_text, self._begin_audio]


def open_tokenizer(paths: Sequence[Path]) -> SpeechTokenizer:
    """Raises IntegrityError."""
    return SpeechTokenizer(tekken_path(paths))
