"""Text to ids and back: the prompt around a recording, and what the model answers."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers.decoders import ByteLevel

from voxport.bundle.constants.qwen3_asr import Qwen3ASRConstants
from voxport.bundle.qwen_tokenizer import QwenTokenizer, added_tokens

TAG = "<asr_text>"  # between the language and the text of an answer
CHARACTER_RUN, UNIT_RUN, LONGEST_UNIT = 20, 20, 20  # repetitions of a character, and of a longer unit
LEAST_REST = 2 * UNIT_RUN  # characters, in which units are looked for
LONG_RUN = re.compile(rf"(.)\1{{{CHARACTER_RUN},}}", re.DOTALL)
UNITS = re.compile(rf"(?=.{{{LEAST_REST}}})(.{{1,{LONGEST_UNIT}}}?)\1{{{UNIT_RUN - 1},}}", re.DOTALL)


class Tokenizer:
    """The tokenizer of a bundle, with the tokens beside its vocabulary."""

    def __init__(self, paths: Sequence[Path], constants: Qwen3ASRConstants):
        """Raises IntegrityError on a missing or broken file."""
        self._tokenizer, self._constants = QwenTokenizer(paths), constants
        self._tokens = {index: token for token, index in self._tokenizer.vocabulary.items()}
        added = added_tokens(paths)
        self._shown = {index: token.text for index, token in added.items() if not token.is_special}
        self._added = frozenset(added)

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Spellings of control tokens are text."""
        return self._tokenizer.encode(text)

    def encode_answer(self, text: str) -> list[int]:
        """Ids of an answer, whose tag is a token."""
        first, *others = map(self.encode, text.split(TAG))
        return [*first, *(index for ids in others for index in (self._constants.asr_text_id, *ids))]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens. Bytes that are no UTF-8 are replaced."""
        parts, tokens, decoder = list[str](), list[str](), ByteLevel()
        for index in ids:
            if index in self._added:
                parts += [decoder.decode(tokens), self._shown.get(index, "")]
                tokens = []
            elif index in self._tokens:
                tokens.append(self._tokens[index])
        return "".join((*parts, decoder.decode(tokens)))

    def prompt(self, rows: int, context: str = "", answer: str = "") -> list[int]:
        """The ids of a prompt for `rows` rows of sound. The model continues `answer`."""
        c, line = self._constants, self.encode("\n")
        return [
            *(c.im_start_id, *self.encode(f"system\n{context}"), c.im_end_id, *line),
            *(c.im_start_id, *self.encode("user\n"), c.audio_start_id, *[c.audio_pad_id] * rows),
            *(c.audio_end_id, c.im_end_id, *line),
            *(c.im_start_id, *self.encode_answer(f"assistant\n{answer}")),
        ]


def forced_answer(language: str | None) -> str:
    """What an answer in a language begins with; empty for any language."""
    return f"language {language}{TAG}" if language else ""


def parse_answer(answer: str, language: str | None = None) -> tuple[str, str]:
    """Language and text of an answer. `language` was forced, so the answer is text alone.

    An empty language means that the model named none, and an empty text that it heard no speech.
    """
    answer = without_repetitions(answer.strip())
    if not answer:
        return "", ""
    if language:
        return language, answer
    head, tag, text = answer.partition(TAG)
    if not tag:
        return "", answer.strip()
    if "language none" in head.lower():
        return "", text.strip()
    names = (line.strip() for line in head.splitlines() if line.strip().lower().startswith("language "))
    name = next(names, "language ")[len("language ") :].strip()
    return name[:1].upper() + name[1:].lower(), text.strip()


def without_repetitions(text: str) -> str:
    """A character that is repeated more than 20 times in a row stands once. So does a unit of 1 to 20
    characters that is repeated 20 times or more, unless fewer than 40 characters are left.
    """
    return UNITS.sub(r"\1", LONG_RUN.sub(r"\1", text))
