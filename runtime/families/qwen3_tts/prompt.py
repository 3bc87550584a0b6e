"""From the texts of a request to the rows that the talker is fed.

Text and codes are summed position by position: each position of the prompt has one row of the width of the
talker.
"""

import logging
from dataclasses import dataclass

import numpy as np

from voxport.bundle.constants.qwen3_tts import QwenConstants
from voxport.bundle.errors import UsageError
from voxport.bundle.names import NAMES, language_code
from voxport.bundle.qwen_tokenizer import QwenTokenizer
from voxport.runtime.engines.base import Stream
from voxport.runtime.speech_request import TextLayout
from voxport.runtime.text.cleanup import MAX_TEXT_CHARACTERS, check_text, is_blank, is_speakable
from voxport.runtime.text.languages import AUTO

NAME_OF_CODE = {code: name for name, code in NAMES.items()}
# Frames of 80 ms. English speech has about 15 letters a second, Chinese about 4.5 characters.
FRAMES_PER_LETTER, FRAMES_PER_WIDE_LETTER = 0.83, 2.8
DIALECT = "_dialect"  # ends the names of dialects, all of Chinese
FIRST_WIDE = "\u3000"  # from here on: Japanese, Chinese and Korean scripts
IGNORES_INSTRUCTIONS = "0b6"  # the size whose CustomVoice model drops them, as in the published package
log = logging.getLogger(__name__)


def language_name(language: str, constants: QwenConstants) -> str:
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


@dataclass(frozen=True)
class Reference:
    """A recording that the speech continues: its transcript int64 [n] and its codes int64 [frames, K]."""

    text: np.ndarray
    codes: np.ndarray


@dataclass(frozen=True)
class QwenPrompt:
    """What is to be spoken, and how.

    text: ids int64 [n], at least one. newline: the id of a line break. language: a name or a code that
    `language_name` takes. speaker: the name of a preset speaker, a vector float32 [dim],
    or None. instruct: ids int64 [n] of an instruction's template, or None. streaming: the text is added to
    the frames while they are made, not before them.
    """

    text: np.ndarray
    newline: int
    language: str = AUTO
    speaker: str | np.ndarray | None = None
    instruct: np.ndarray | None = None
    reference: Reference | None = None
    streaming: bool = True


@dataclass(frozen=True)
class PromptRows:
    """`prefill` float32 [P, dim] is fed before the first frame; its first `prefix_rows` rows suit every text.
    Row t of `trailing` float32 [n, dim] is added to frame t, and `padding` float32 [dim] behind them.
    """

    prefill: np.ndarray
    prefix_rows: int
    trailing: np.ndarray
    padding: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.prefill)


class PromptEmbedder:
    """Builds the rows of prompts with the embeddings of a stream."""

    def __init__(self, stream: Stream, constants: QwenConstants):
        self._stream, self._constants = stream, constants

    def text(self, ids: np.ndarray | list[int]) -> np.ndarray:
        """ids [n] -> float32 [n, dim]."""
        found = np.array(ids, np.int64)
        if not len(found):
            return np.zeros((0, self._constants.dim), np.float32)
        return np.asarray(self._stream.run_rows("embed_text", {"ids": found[None]})["embeddings"][0])

    def frames(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [n, K] -> float32 [n, dim]. A code below 0 adds nothing."""
        return np.asarray(self._stream.run_rows("embed_codes", {"codes": codes[None]})["embeddings"][0])

    def control(self, *ids: int) -> np.ndarray:
        """Ids of the talker's own vocabulary -> float32 [n, dim]."""
        codes = np.full((len(ids), self._constants.n_codebooks), -1)
        codes[:, 0] = ids
        return self.frames(codes)

    def rows(self, prompt: QwenPrompt) -> PromptRows:
        """Raises UsageError on a language or a speaker that the model does not have."""
        constants = self._constants
        if not len(prompt.text):
            raise UsageError("text: it has no ids; give at least one word", field="text")
        padding, start, end = self.text([constants.tts_pad_id, constants.tts_bos_id, constants.tts_eos_id])
        codes = np.concatenate(
            (
                self.control(*self._language_ids(prompt)),
                self._speaker_rows(prompt.speaker),
                self.control(constants.codec_pad_id, constants.codec_bos_id),
            )
        )
        role = [constants.im_start_id, constants.assistant_id, prompt.newline]
        head = [
            self.text([] if prompt.instruct is None else list(prompt.instruct)),
            self.text(role),
            np.concatenate((np.tile(padding, (len(codes) - 2, 1)), start[None])) + codes[:-1],
        ]
        body, trailing = self._body(prompt, padding, end, codes[-2], codes[-1])
        transcript = 0 if prompt.reference is None else len(prompt.reference.text)
        fixed = sum(map(len, head)) + min(transcript, len(body) - 1)
        return PromptRows(np.concatenate((*head, body)), fixed, trailing, padding)

    def _body(
        self, prompt: QwenPrompt, padding: np.ndarray, end: np.ndarray, pad: np.ndarray, start: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rest of the prompt and the trailing text. `pad` and `start` are rows of codes."""
        reference, none = prompt.reference, padding[None][:0]
        before = [] if reference is None else list(reference.text)
        text = np.concatenate((self.text([*before, *prompt.text]), end[None]))
        codes = start[None] if reference is None else np.vstack((start[None], self.frames(reference.codes)))
        if not prompt.streaming:
            return np.concatenate((text + pad, codes + padding)), none
        shared = min(len(text), len(codes))
        filler = np.tile(padding, (len(codes) - shared, 1))
        return np.concatenate((text[:shared], filler)) + codes, text[shared:]

    def _language_ids(self, prompt: QwenPrompt) -> tuple[int, ...]:
        """A dialect of a speaker takes the place of Chinese, and of `auto`."""
        constants = self._constants
        name = language_name(prompt.language, constants)
        if name in (AUTO, "chinese") and isinstance(prompt.speaker, str):
            name = constants.dialects.get(prompt.speaker.lower(), name)
        if name == AUTO:
            return constants.codec_nothink_id, constants.codec_think_bos_id, constants.codec_think_eos_id
        return (
            constants.codec_think_id,
            constants.codec_think_bos_id,
            constants.codec_language_id[name],
            constants.codec_think_eos_id,
        )

    def _speaker_rows(self, speaker: str | np.ndarray | None) -> np.ndarray:
        constants = self._constants
        if speaker is None:
            return np.zeros((0, constants.dim), np.float32)
        if isinstance(speaker, str):
            if speaker.lower() not in constants.speakers:
                names = ", ".join(sorted(constants.speakers)) or "none"
                raise UsageError(f"speaker {speaker!r}: unknown, this model has {names}", field="speaker")
            return self.control(constants.speakers[speaker.lower()])
        if speaker.shape != (constants.dim,):
            raise UsageError(
                f"speaker: a vector of shape {list(speaker.shape)}, expected [{constants.dim}]; make the "
                "voice again with this model",
                field="speaker",
            )
        return speaker.astype(np.float32)[None]


@dataclass(frozen=True)
class Voice:
    """Who speaks: `speaker` is the name of a preset speaker, a vector float32 [dim], or None. `reference` is
    a recording that the speech continues.
    """

    speaker: str | np.ndarray | None = None
    reference: Reference | None = None


class PromptBuilder:
    """Builds prompts for one model."""

    def __init__(self, tokenizer: QwenTokenizer, constants: QwenConstants):
        self._tokenizer, self._constants = tokenizer, constants

    def build(
        self,
        text: str,
        voice: Voice,
        language: str = AUTO,
        instruct: str | None = None,
        layout: TextLayout | None = None,
    ) -> QwenPrompt:
        """`layout` decides when text is added (None: as in the published package for this kind of model).

        Raises UsageError on what the model does not take.
        """
        constants = self._constants
        self._check_voice(voice)
        instruction = self.instruction(instruct)
        if instruct is not None and instruction is None:
            log.warning("instruct: the 0.6B CustomVoice model follows no instruction; it is left out")
        return QwenPrompt(
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
