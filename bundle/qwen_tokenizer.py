"""Text to ids: byte-level BPE of `vocab.json` and `merges.txt` with Qwen's pattern.

Not by `transformers`, which replaces the pattern by another one for downloaded folders of this model, and
needs torch. Spellings of special tokens in a text are read as text.
"""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from voxport.bundle.constants.qwen3_tts import PATTERN
from voxport.bundle.errors import IntegrityError, first_line

VOCABULARY = ("vocab.json", "merges.txt")


class QwenTokenizer:
    """`newline` is the id of a line break, which the model's templates have; `vocabulary` has all ids."""

    def __init__(self, paths: Sequence[Path]):
        """Raises IntegrityError on a missing or broken file."""
        files = {path.name: path for path in paths}
        missing = [name for name in VOCABULARY if name not in files]
        if missing:
            raise IntegrityError(f"{missing[0]}: missing; export the bundle again with its tokenizer")
        try:
            model = BPE.from_file(*(str(files[name]) for name in VOCABULARY))
            self._tokenizer = Tokenizer(model)
            split = Split(Regex(PATTERN), "isolated")
            self._tokenizer.pre_tokenizer = Steps([split, ByteLevel(add_prefix_space=False, use_regex=False)])
            (self.newline,) = self.encode("\n")
            self.vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        except Exception as error:  # the library raises bare Exception
            reason = first_line(error)
            raise IntegrityError(
                f"{files['vocab.json']}: not a readable vocabulary ({reason}); fetch it again"
            ) from None

    def encode(self, text: str) -> list[int]:
        """Ids of the text after NFC."""
        ids: list[int] = self._tokenizer.encode(unicodedata.normalize("NFC", text)).ids
        return ids
