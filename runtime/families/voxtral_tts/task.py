"""`VoxtralTextToSpeech`: the text-to-speech task on a Voxtral-TTS bundle."""

from bundle.bundle import Bundle
from runtime.batching import BatchedDecoder
from runtime.engines.base import Engine
from runtime.families.voxtral_tts.batched import BATCHED, SpeechSlots
from runtime.families.voxtral_tts.constants import Constants
from runtime.families.voxtral_tts.prefix_cache import PrefixCache
from runtime.families.voxtral_tts.prompt import PromptBuilder
from runtime.families.voxtral_tts.tokenizer import open_tokenizer
from runtime.families.voxtral_tts.voices import count_rows
from runtime.text.tokenizer import tokenizer_paths
from runtime.text_to_speech import SpeechRequest, TextToSpeech


class VoxtralTextToSpeech(TextToSpeech):
    """Each `batched` decoder has an engine stream of its own; prompts and prefix rows are shared."""

    def __init__(self, bundle: Bundle, engine: Engine, constants: Constants):
        """Raises UsageError without a tokenizer, IntegrityError on a broken one."""
        self.bundle, self.engine, self._constants = bundle, engine, constants
        self._prompts = PromptBuilder(bundle, open_tokenizer(tokenizer_paths(bundle)), constants)
        self._prefixes = PrefixCache(bundle, engine.identity)

    @property
    def sample_rate(self) -> int:
        return self._constants.sample_rate

    @property
    def max_slots(self) -> int:
        return min(self.bundle.component(name).max_batch for name in BATCHED)

    def voices(self) -> dict[str, int]:
        return count_rows(self.bundle, self._constants.dim)

    def batched(self, slots: int) -> BatchedDecoder[SpeechRequest]:
        stream = self.engine.batched(slots)
        return BatchedDecoder(SpeechSlots(stream, self._constants, self._prompts, self._prefixes))
