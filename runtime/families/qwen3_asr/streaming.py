"""Live sound by the official algorithm: all sound so far is read again, and the answer so far is continued.

After each chunk the model gets all sound, and the answer without its last tokens, which may change. Finished
windows of the encoder and rows in the caches are kept, which leaves the tokens equal.
"""

from dataclasses import dataclass

from voxport.runtime.families.qwen3_asr.text import Tokenizer

REPLACEMENT = "\ufffd"  # of a character of which tokens are missing


@dataclass(frozen=True)
class StreamSettings:
    """A chunk has `chunk_s` seconds. The first `unfixed_chunks` are read without an answer before them. Later
    ones may change the last `unfixed_tokens` of the answer.
    """

    chunk_s: float = 2.0
    unfixed_chunks: int = 2
    unfixed_tokens: int = 5


def kept_answer(
    tokenizer: Tokenizer, answer: str, chunk: int, settings: StreamSettings, is_last: bool = False
) -> str:
    """What stays of an answer before chunk number `chunk`.

    It never ends within a character. The official package lets it do so before the last chunk, and then loses
    the end of the text.
    """
    if chunk < settings.unfixed_chunks:
        return ""
    ids = tokenizer.encode_answer(answer)
    end = len(ids) - settings.unfixed_tokens
    if is_last:
        end = max(end, min(1, len(ids)))
    while end > 0 and REPLACEMENT in (kept := tokenizer.decode(ids[:end])):
        end -= 1
    return kept if end > 0 else ""
