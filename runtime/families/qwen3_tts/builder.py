"""From the texts of a request to a `Prompt`, and the rules of the model for what it takes."""

import logging
from dataclasses import dataclass

import numpy as np

from voxport.bundle.constants.qwen3_tts import Constants
from voxport.bundle.errors import UsageError
from voxport.bundle.qwen_tokenizer import QwenTokenizer
from voxport.runtime.families.qwen3_tts.prompt import Prompt, Reference
from voxport.runtime.speech_request import TextLayout
from voxport.runtime.text.cleanup import MAX_TEXT_CHARACTERS, check_text, is_blank, is_speakable
from voxport.runtime.text.languages import AUTO

IGNORES_INSTRUCTIONS = "0b6"  # the size whose CustomVoice model drops them, as in the published package
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Voice:
    """Who speaks: `speaker` is the name of a preset speaker, a vector float32 [dim], or None. `reference` is
    a recording that the speech continues.
    """

    speaker: str | np.ndarray | None = None
    reference: Reference | None = None


class PromptBuilder:
    """Builds prompts for one model."""

    def __init__(self, tokenizer: QwenTokenizer, constants: Constants):
        self._tokenizer, self._constants = tokenizer, constants

    def build(
        self,
        text: str,
        voice: Voice,
        language: str = AUTO,
        instruct: str | None = None,
        layout: TextLayout | None = None,
    ) -> Prompt:
        """`layout` decides when text is added (None: as in the published package for this kind of model).

        Raises UsageError on what the model does not take.
        """
        constants = self._constants
        self._check_voice(voice)
        instruction = self.instruction(instruct)
        if instruct is not None and instruction is None:
            log.warning("instruct: the 0.6B CustomVoice model follows no instruction; it is left out")
        return Prompt(
            text=np.array(self.ids(text), np.int64),
            newline=self._tokenizer.newline,
            language=language,
            speaker=voice.speaker,
            instruct=instruction,
            reference=voice.reference,
            streaming=constants.streams_text if layout is None else layout == "streaming",
        )

    def ids(self, text: str, field: str = "text") -> list[int]:
        """Ids of a text. Raises UsageError of `field`."""
        if len(text) > MAX_TEXT_CHARACTERS:
            raise UsageError(
                f"{field}: {len(text)} characters, expected at most {MAX_TEXT_CHARACTERS}; shorten it",
                field=field,
            )
        check_text(text, field)
        if text[:1] in ("\n", "\r"):
            raise UsageError(
                f"{field}: it begins with a line break, which the model reads as part of its template; "
                "remove it",
                field=field,
            )
        found = [] if is_blank(text) else self._tokenizer.encode(text)
        if not found:
            raise UsageError(f"{field}: it is empty; give at least one word", field=field)
        if max(found) >= self._constants.text_vocab_size:
            raise UsageError(
                f"{field}: the tokenizer gives id {max(found)}, the model has "
                f"{self._constants.text_vocab_size} ids; export again with the tokenizer of its checkpoint"
            )
        return found

    def transcript(self, text: str, field: str = "transcript") -> np.ndarray:
        """Ids int64 [n] of what is said in a recording. Raises UsageError of `field`."""
        ids = self.ids(text, field)
        if not is_speakable(text):
            raise UsageError(
                f"{field}: {text[:20]!r} has no word; give the words of the recording", field=field
            )
        return np.array(ids, np.int64)

    @property
    def follows_instructions(self) -> bool:
        constants = self._constants
        ignores = constants.kind == "custom_voice" and constants.size == IGNORES_INSTRUCTIONS
        return constants.kind != "base" and not ignores

    def instruction(self, instruct: str | None) -> np.ndarray | None:
        """Ids int64 [n] of the template of an instruction, None if the model leaves it out.

        Raises UsageError on an instruction that it does not take.
        """
        constants = self._constants
        if instruct is None:
            return None
        if constants.kind == "base":
            raise UsageError(
                "instruct: a Base model clones voices and takes no instruction; leave it out, or use a "
                "CustomVoice or VoiceDesign model",
                field="instruct",
            )
        ids = [*self._tokenizer.encode("user\n"), *self.ids(instruct, "instruct")]
        if not self.follows_instructions:
            return None
        ends = constants.im_start_id, constants.im_end_id
        return np.array([ends[0], *ids, ends[1], self._tokenizer.newline], np.int64)

    def _check_voice(self, voice: Voice) -> None:
        kind, speaker = self._constants.kind, voice.speaker
        if kind == "custom_voice" and not isinstance(speaker, str):
            names = ", ".join(sorted(self._constants.speakers)) or "none"
            raise UsageError(f"voice: this model speaks with {names}; name one of them", field="voice")
        if kind == "base" and not isinstance(speaker, np.ndarray):
            raise UsageError(
                "voice: a Base model speaks with the voice of a recording; make one with "
                "`voxport voice add NAME RECORDING --bundle BUNDLE`",
                field="voice",
            )
        if kind == "voice_design" and speaker is not None:
            raise UsageError(
                "voice: a VoiceDesign model has no voices; describe one with the option instruct",
                field="voice",
            )
