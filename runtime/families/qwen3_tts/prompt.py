"""From a typed prompt to the rows that the talker is fed.

Text and codes are summed position by position: each position of the prompt has one row of the width of the
talker.
"""

from dataclasses import dataclass

import numpy as np

from voxport.bundle.constants.qwen3_tts import Constants
from voxport.bundle.errors import UsageError
from voxport.runtime.engines.base import Stream
from voxport.runtime.families.qwen3_tts.languages import language_name
from voxport.runtime.text.languages import AUTO


@dataclass(frozen=True)
class Reference:
    """A recording that the speech continues: its transcript int64 [n] and its codes int64 [frames, K]."""

    text: np.ndarray
    codes: np.ndarray


@dataclass(frozen=True)
class Prompt:
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
    """`prefill` float32 [P, dim] is fed before the first frame; its first `fixed` rows suit every text.
    Row t of `trailing` float32 [n, dim] is added to frame t, and `padding` float32 [dim] behind them.
    """

    prefill: np.ndarray
    fixed: int
    trailing: np.ndarray
    padding: np.ndarray


class PromptEmbedder:
    """Builds the rows of prompts with the embeddings of a stream."""

    def __init__(self, stream: Stream, constants: Constants):
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

    def rows(self, prompt: Prompt) -> PromptRows:
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
        self, prompt: Prompt, padding: np.ndarray, end: np.ndarray, pad: np.ndarray, start: np.ndarray
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

    def _language_ids(self, prompt: Prompt) -> tuple[int, ...]:
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
