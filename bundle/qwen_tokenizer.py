"""Text to ids: byte-level BPE of `vocab.json` and `merges.txt`, or of `tokenizer.json`, with Qwen's pattern.

Not by `transformers`, which replaces the pattern by another one for downloaded folders of this model, and
needs torch. Spellings of special tokens in a text are read as text.
"""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from voxport.bundle.constants.qwen3_tts import PATTERN
from voxport.bundle.errors import IntegrityError, first_line

VOCABULARY = ("vocab.json", "merges.txt")
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


@dataclass(frozen=True)
class AddedToken:
    """A token beside the vocabulary. Special ones are no text."""

    text: str
    is_special: bool


def added_tokens(paths: Iterable[Path]) -> dict[int, AddedToken]:
    """Tokens beside the vocabulary by their ids, of the files that exist. Raises IntegrityError."""
    found = dict[int, AddedToken]()
    for path in paths:
        if path.name not in (TOKENIZER, TOKENIZER_CONFIG) or not path.is_file():
            continue
        try:
            content = json.loads(path.read_bytes())
            entries = content.get("added_tokens_decoder", {}) | {
                each["id"]: each for each in content.get("added_tokens", ())
            }
            found |= {int(id): AddedToken(each["content"], each["special"]) for id, each in entries.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise IntegrityError(f"{path}: added tokens: {first_line(error)}; fetch it again") from None
    return found


class QwenTokenizer:
    """`newline` is the id of a line break, which the model's templates have; `vocabulary` has all ids."""

    def __init__(self, paths: Sequence[Path]):
        """Raises IntegrityError on a missing or broken file."""
        files = {path.name: path for path in paths}
        missing = [name for name in VOCABULARY if name not in files]
        if missing and TOKENIZER not in files:
            raise IntegrityError(f"{missing[0]}: missing; export the bundle again with its tokenizer")
        try:
            if missing:
                model = _model_of(files[TOKENIZER])
            else:
                model = BPE.from_file(*(str(files[name]) for name in VOCABULARY))
            self._tokenizer = Tokenizer(model)
            split = Split(Regex(PATTERN), "isolated")
            self._tokenizer.pre_tokenizer = Steps([split, ByteLevel(add_prefix_space=False, use_regex=False)])
            (self.newline,) = self.encode("\n")
            self.vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        except Exception as error:  # the library raises bare Exception
            reason = first_line(error)
            path = files[TOKENIZER if missing else VOCABULARY[0]]
            raise IntegrityError(f"{path}: not a readable vocabulary ({reason}); fetch it again") from None

    def encode(self, text: str) -> list[int]:
        """Ids of the text after NFC."""
        ids: list[int] = self._tokenizer.encode(unicodedata.normalize("NFC", text)).ids
        return ids


def _model_of(path: Path) -> BPE:
    content = json.loads(path.read_bytes())["model"]
    merges = (each.split(" ") if isinstance(each, str) else each for each in content["merges"])
    return BPE(content["vocab"], [(first, second) for first, second in merges])
