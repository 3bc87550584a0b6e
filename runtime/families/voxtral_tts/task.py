"""The Voxtral-TTS family: text to speech."""

from collections.abc import Callable, Iterator

import numpy as np

from voxport.bundle.constants.voxtral_tts import END_AUDIO, VoxtralConstants
from voxport.bundle.manifest import Bundle
from voxport.runtime.batching import Fill, RowLimit, max_slots
from voxport.runtime.engines.base import Engine, Stream
from voxport.runtime.families import Call, RuntimeFamily, parse_constants, tokenizer_paths
from voxport.runtime.families.voxtral_tts.decoder import BATCHED, FRAMES, VoxtralDecoder
from voxport.runtime.families.voxtral_tts.prompt import (
    PromptBuilder,
    count_rows,
    default_voice,
    estimated_frames,
    language_of_voice,
    open_tokenizer,
)
from voxport.runtime.prefix_cache import PrefixCache
from voxport.runtime.speech_decoder import StoredPrefix, read_prompt
from voxport.runtime.speech_request import SpeechRequest
from voxport.runtime.text.preparation import TextRules
from voxport.runtime.text_to_speech import TextToSpeech
from voxport.runtime.utterance import UtteranceSlots

SMALL_VOCABULARY = 10_000  # the published one has 131,072
BACKBONE = Call(frozenset({"embeddings", "position"}), frozenset({"hidden", "semantic_logits", "condition"}))


class VoxtralTextToSpeech(TextToSpeech):
    """Each `batched` decoder has an engine stream of its own; prompts and prefix rows are shared."""

    end_code = END_AUDIO

    def __init__(self, bundle: Bundle, engine: Engine, constants: VoxtralConstants):
        """Raises UsageError without a tokenizer, IntegrityError on a broken one."""
        self.bundle, self.engine, self._constants = bundle, engine, constants
        self.languages = bundle.job.languages
        self._prompts = PromptBuilder(bundle, open_tokenizer(tokenizer_paths(bundle)), constants)
        self._prefixes = PrefixCache(bundle, engine.identity)

    @property
    def text_rules(self) -> TextRules:
        """A model with a small vocabulary, as the embedded one, was trained on single sentences without
        digits.
        """
        is_small = self._constants.vocab_size < SMALL_VOCABULARY
        return TextRules(least_characters=0, words_only=True) if is_small else super().text_rules

    @property
    def sample_rate(self) -> int:
        return self._constants.sample_rate

    @property
    def samples_per_frame(self) -> int:
        return self._constants.samples_per_frame

    def estimated_frames(self, text: str) -> float:
        return estimated_frames(text)

    @property
    def max_slots(self) -> int:
        return max_slots(self.bundle.components, BATCHED)

    def voices(self) -> dict[str, int]:
        return count_rows(self.bundle, self._constants.dim)

    def bundle_voices(self) -> list[str]:
        return list(self.bundle.manifest.voices)

    def default_bundle_voice(self) -> str | None:
        return default_voice(self.bundle)

    def code_sizes(self) -> tuple[int, ...]:
        return self._constants.code_sizes

    def decode(self, codes: np.ndarray) -> np.ndarray:
        from voxport.runtime.codes import check_codes

        codes = check_codes(codes, self.code_sizes())
        return VoxtralDecoder(self.engine.stream(), self._constants).decode(codes)

    def language(self, voice: str | None) -> str:
        found = language_of_voice(self.bundle, voice)
        return found if found in self.languages else self.languages[0]

    def fits_prompt(self, voice: str | None, instruct: str | None = None) -> Callable[[str], bool]:
        return self._prompts.fits_prompt(voice)

    def slot_decoder(self, slots: int) -> "VoxtralSlots":
        return VoxtralSlots(self.engine.batched(slots), self._constants, self._prompts, self._prefixes)


class VoxtralSlots(UtteranceSlots[VoxtralConstants, VoxtralDecoder, np.ndarray]):
    """The backbone and the acoustic head read weights once for all slots."""

    def __init__(
        self, stream: Stream, constants: VoxtralConstants, prompts: PromptBuilder, prefixes: PrefixCache
    ):
        super().__init__(stream, constants, FRAMES, estimated_frames)
        self._prompts, self._prefixes = prompts, prefixes

    def prepare(self, request: SpeechRequest) -> Fill:
        """Builds the prompt, and reads the stored rows of its prefix. Raises UsageError."""
        prompt = self._prompts.build(request)
        key = prompt.prefix.tobytes() + prompt.voice.tobytes()
        prefix = StoredPrefix(key, request.store_prefix, self._prefixes.load(key))

        def read(slot: int, limit: RowLimit) -> Iterator[None]:
            decoder = VoxtralDecoder(self._stream.slot(slot), self._constants)
            decoder.may_end = request.may_be_empty
            self._begin(slot, decoder, request)
            yield from read_prompt(decoder, prompt, prefix, self._prefixes, limit)

        return read


FAMILY = RuntimeFamily[VoxtralConstants](
    name="voxtral_tts",
    task=TextToSpeech,
    calls=lambda job: {
        "embed_text": Call(frozenset({"ids"}), frozenset({"embeddings"})),
        "embed_codes": Call(frozenset({"codes"}), frozenset({"embeddings"})),
        "prefill": BACKBONE,
        "decode_step": BACKBONE,
        "acoustic_step": Call(frozenset({"x", "step", "condition"}), frozenset({"next_x", "velocity"})),
        "codec_step": Call(frozenset({"codes", "position"}), frozenset({"audio"}), frozenset({"T"})),
    },
    constants=VoxtralConstants,
    voices=lambda bundle: count_rows(bundle, parse_constants(VoxtralConstants, bundle.job.constants).dim),
    open=VoxtralTextToSpeech,
    workloads="voxport.runtime.families.voxtral_tts.workload",
)
