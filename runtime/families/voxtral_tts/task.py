"""`VoxtralTextToSpeech`: the text-to-speech task on a Voxtral-TTS bundle."""

from collections.abc import Callable
from functools import partial

import numpy as np

from bundle.manifest import Bundle
from runtime.batching import BatchedDecoder, Fill, SlotOutput
from runtime.engines.base import Engine, Stream
from runtime.families.voxtral_tts.decoder import (
    BATCHED,
    END_AUDIO,
    Constants,
    Prompt,
    SpeechDecoder,
    batched_frame,
    batched_step,
)
from runtime.families.voxtral_tts.prefix_cache import PrefixCache
from runtime.families.voxtral_tts.prompt import PromptBuilder, open_tokenizer, usual_frames
from runtime.families.voxtral_tts.voices import count_rows, language_of_voice
from runtime.text.tokenizer import tokenizer_paths
from runtime.text_to_speech import SpeechRequest, TextToSpeech
from runtime.utterance import SpokenFrames


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
    def samples_per_frame(self) -> int:
        return self._constants.samples_per_frame

    def usual_frames(self, text: str) -> float:
        return usual_frames(text)

    @property
    def max_slots(self) -> int:
        return min(self.bundle.component(name).max_batch for name in BATCHED)

    def voices(self) -> dict[str, int]:
        return count_rows(self.bundle, self._constants.dim)

    def language(self, voice: str | None) -> str:
        return language_of_voice(self.bundle, voice)

    def room(self, voice: str | None) -> Callable[[str], bool]:
        return self._prompts.room(voice)

    def batched(self, slots: int) -> BatchedDecoder[SpeechRequest]:
        stream = self.engine.batched(slots)
        return BatchedDecoder(SpeechSlots(stream, self._constants, self._prompts, self._prefixes))


class SpeechSlots:
    """The operations of `runtime.batching.SlotDecoder`: utterances in the slots of one batched stream.

    The backbone and the acoustic head read weights once for all.
    """

    def __init__(self, stream: Stream, constants: Constants, prompts: PromptBuilder, prefixes: PrefixCache):
        self._stream, self._constants, self._prompts, self._prefixes = stream, constants, prompts, prefixes
        self._utterances: dict[int, Utterance] = {}
        self._codes = np.zeros((stream.batch, constants.n_codebooks), np.int64)
        self.slots = stream.batch

    def prepare(self, request: SpeechRequest) -> Fill:
        """Builds the prompt. Raises UsageError."""
        return partial(self._fill, request, self._prompts.build(request))

    def _fill(self, request: SpeechRequest, prompt: Prompt, slot: int) -> None:
        decoder = SpeechDecoder(self._stream.slot(slot), self._constants)
        rows = self._prefixes.load(prompt, decoder.stream.row_shapes(len(prompt.prefix)))
        computed = decoder.start(prompt, rows)
        if rows is None:
            self._prefixes.save(prompt, computed)
        self._utterances[slot] = Utterance(decoder, request)

    def feed(self) -> None:
        batched_step(self._stream, self._decoders(), self._codes)

    def decode(self) -> None:
        noise = np.zeros((self.slots, self._constants.n_codebooks - 1), np.float32)
        for slot, utterance in self._utterances.items():
            noise[slot] = utterance.noise()
        self._codes = batched_frame(self._stream, self._constants, self._decoders(), noise)

    def take(self, slot: int) -> SlotOutput:
        return self._utterances[slot].push(self._codes[slot])

    def free(self, slot: int) -> None:
        del self._utterances[slot]

    def _decoders(self) -> dict[int, SpeechDecoder]:
        return {slot: utterance.decoder for slot, utterance in self._utterances.items()}


class Utterance:
    """A request that is being spoken: its decoder, noise and frames."""

    def __init__(self, decoder: SpeechDecoder, request: SpeechRequest):
        """`decoder` has read the prompt of the request."""
        self.decoder = decoder
        self.decoder.may_end = request.may_be_empty
        self._frames = SpokenFrames(decoder, request, usual_frames)
        self._generator = np.random.default_rng(request.seed)

    def noise(self) -> np.ndarray:
        """Noise of the next frame: float32 [1, K - 1]."""
        codebooks = self.decoder.constants.n_codebooks
        return self._generator.standard_normal((1, codebooks - 1), dtype=np.float32)

    def push(self, codes: np.ndarray) -> SlotOutput:
        """Takes the codes int64 [K] of a frame."""
        self.decoder.may_end = True
        return self._frames.push(None if codes[0] == END_AUDIO else codes)
