"""`QwenTextToSpeech`: the text-to-speech task on a Qwen3-TTS bundle."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bundle.manifest import Bundle
from runtime.batching import BatchedDecoder, Fill, SlotOutput
from runtime.engines.base import Engine, Stream
from runtime.families.qwen3_tts.builder import PromptBuilder, Voice
from runtime.families.qwen3_tts.cloning import encode_reference, speaker_embedding
from runtime.families.qwen3_tts.constants import AUTO, Constants
from runtime.families.qwen3_tts.decoder import (
    BATCHED,
    END,
    FrameNoise,
    SpeechDecoder,
    batched_frame,
    batched_step,
    draw_noise,
)
from runtime.families.qwen3_tts.languages import language_name, usual_frames
from runtime.families.qwen3_tts.prompt import Prompt, PromptEmbedder, Reference
from runtime.families.qwen3_tts.recording import read_recording, warn_of_misfit
from runtime.families.qwen3_tts.tokenizer import QwenTokenizer
from runtime.families.qwen3_tts.voices import (
    choose_voice,
    count_rows,
    language_of_voice,
    model_digest,
    user_voices,
    voice_content,
)
from runtime.text.cleanup import check_text
from runtime.text.tokenizer import tokenizer_paths
from runtime.text_to_speech import SpeechRequest, TextToSpeech
from runtime.utterance import SpokenFrames

FIXED_ROWS = 16  # of a prompt besides text, instruction and reference; at most


class QwenTextToSpeech(TextToSpeech):
    """Each `batched` decoder has an engine stream of its own; the tokenizer is shared."""

    def __init__(self, bundle: Bundle, engine: Engine, constants: Constants):
        """Raises UsageError without a tokenizer, IntegrityError on a broken one."""
        self.bundle, self.engine, self._constants = bundle, engine, constants
        self._builder = PromptBuilder(QwenTokenizer(tokenizer_paths(bundle)), constants)
        self._capacity = bundle.component("decode_step").signature.capacity or 0

    @property
    def sample_rate(self) -> int:
        return self._constants.sample_rate

    @property
    def samples_per_frame(self) -> int:
        return self._constants.samples_per_frame

    @property
    def max_slots(self) -> int:
        return min(self.bundle.component(name).max_batch for name in BATCHED)

    def usual_frames(self, text: str) -> float:
        return usual_frames(text)

    def voices(self) -> dict[str, int]:
        return count_rows(self.bundle, self._constants)

    def voice_path(self, name: str) -> Path:
        if self._constants.kind != "base":
            raise self._no_clones()
        folder = user_voices(self.bundle)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.safetensors"

    def make_voice(self, recording: Path, transcript: str | None = None) -> bytes:
        """Without a transcript the voice is a vector only. Raises UsageError."""
        if self._constants.kind != "base":
            raise self._no_clones()
        samples, stream = read_recording(recording, self.sample_rate), self.engine.stream()
        reference = None
        if transcript is not None:
            ids = self._builder.ids(check_text(transcript).strip(), "transcript")
            warn_of_misfit(transcript, len(samples) / self.samples_per_frame, usual_frames(transcript))
            reference = Reference(np.array(ids, np.int64), encode_reference(stream, samples))
        _, vector = speaker_embedding(stream, self._constants, samples)
        return voice_content(Voice(vector, reference), model_digest(self.bundle))

    def language(self, voice: str | None) -> str:
        return language_of_voice(voice)

    def room(self, voice: str | None) -> Callable[[str], bool]:
        reference = choose_voice(self.bundle, self._constants, voice).reference
        fixed = FIXED_ROWS + (len(reference.codes) + len(reference.text) if reference else 0)

        def fits(text: str) -> bool:
            return fixed + len(self._builder.ids(text)) + usual_frames(text) <= self._capacity

        return fits

    def batched(self, slots: int) -> BatchedDecoder[SpeechRequest]:
        stream = self.engine.batched(slots)
        return BatchedDecoder(SpeechSlots(stream, self._constants, self._prompt))

    def _prompt(self, request: SpeechRequest) -> Prompt:
        """Raises UsageError on what the bundle cannot speak."""
        return self._builder.build(
            check_text(request.text),
            choose_voice(self.bundle, self._constants, request.voice),
            language_name(request.language, self._constants) if request.language else AUTO,
            request.instruct,
        )


class SpeechSlots:
    """The operations of `runtime.batching.SlotDecoder`: utterances in the slots of one batched stream."""

    def __init__(self, stream: Stream, constants: Constants, prompt: Callable[[SpeechRequest], Prompt]):
        self._stream, self._constants, self._prompt = stream, constants, prompt
        self._utterances: dict[int, Utterance] = {}
        self._codes = np.full((stream.batch, constants.n_codebooks), END)
        self.slots = stream.batch

    def prepare(self, request: SpeechRequest) -> Fill:
        """Builds the prompt. Raises UsageError."""
        return partial(self._fill, request, self._prompt(request))

    def _fill(self, request: SpeechRequest, prompt: Prompt, slot: int) -> None:
        stream = self._stream.slot(slot)
        decoder = SpeechDecoder(stream, self._constants)
        decoder.start(PromptEmbedder(stream, self._constants).rows(prompt))
        self._utterances[slot] = Utterance(decoder, request)

    def feed(self) -> None:
        batched_step(self._stream, self._decoders(), self._codes)

    def decode(self) -> None:
        noise = {slot: utterance.noise() for slot, utterance in self._utterances.items()}
        self._codes = batched_frame(self._stream, self._constants, self._decoders(), noise)

    def take(self, slot: int) -> SlotOutput:
        codes = self._codes[slot]
        return self._utterances[slot].frames.push(None if codes[0] == END else codes)

    def free(self, slot: int) -> None:
        del self._utterances[slot]

    def _decoders(self) -> dict[int, SpeechDecoder]:
        return {slot: utterance.decoder for slot, utterance in self._utterances.items()}


class Utterance:
    """A request that is being spoken: its decoder, noise and frames."""

    def __init__(self, decoder: SpeechDecoder, request: SpeechRequest):
        """`decoder` has read the prompt of the request."""
        self.decoder = decoder
        self.frames = SpokenFrames(decoder, request, usual_frames)
        self._generator = np.random.default_rng(request.seed)

    def noise(self) -> FrameNoise:
        """Noise of the next frame."""
        return draw_noise(self._generator, self.decoder.constants)
