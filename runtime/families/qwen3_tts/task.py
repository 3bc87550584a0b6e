"""The Qwen3-TTS family: text to speech, with cloned voices."""

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from voxport.bundle.constants.qwen3_tts import QwenConstants
from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.manifest import Bundle
from voxport.bundle.qwen_tokenizer import QwenTokenizer
from voxport.runtime.batching import Fill, RowLimit, max_slots
from voxport.runtime.engines.base import Engine, Stream
from voxport.runtime.families import Call, RuntimeFamily, parse_constants, tokenizer_paths
from voxport.runtime.families.qwen3_tts.cloning import (
    SPEECH_ENCODER,
    check_transcript,
    encode_reference,
    read_recording,
    read_samples,
    recording_rate,
    speaker_embedding,
    speech_seconds,
)
from voxport.runtime.families.qwen3_tts.decoder import (
    BATCHED,
    END,
    FRAME_LOOP,
    FrameNoise,
    QwenDecoder,
    ReferenceStates,
    sampling_of,
)
from voxport.runtime.families.qwen3_tts.prompt import (
    PromptBuilder,
    PromptEmbedder,
    QwenPrompt,
    Reference,
    Voice,
    code_of_name,
    estimated_frames,
    language_name,
)
from voxport.runtime.families.qwen3_tts.split_stream import MASKS, standard_stream
from voxport.runtime.families.qwen3_tts.voices import (
    bundle_voices,
    check_voice,
    choose_voice,
    count_rows,
    language_of_voice,
    model_digest,
    read_foreign_voice,
    user_voices,
    voice_content,
)
from voxport.runtime.prefix_cache import PrefixCache
from voxport.runtime.speech_decoder import StoredPrefix, read_prompt
from voxport.runtime.speech_request import SpeechRequest, TextLayout
from voxport.runtime.text.languages import AUTO
from voxport.runtime.text_to_speech import TextToSpeech
from voxport.runtime.utterance import UtteranceSlots

FIXED_ROWS = 16  # at most, in a prompt besides text, instruction and reference
MIN_TEXT_ROWS = 16  # for a part of a text and its speech: about 1 s
log = logging.getLogger(__name__)


class QwenTextToSpeech(TextToSpeech):
    """Each `batched` decoder has an engine stream of its own; the tokenizer is shared."""

    end_code = END

    def __init__(self, bundle: Bundle, engine: Engine, constants: QwenConstants):
        """Raises UsageError without a tokenizer, IntegrityError on a broken one."""
        self.bundle, self.engine, self._constants = bundle, engine, constants
        self.languages = bundle.job.languages
        self._builder = PromptBuilder(QwenTokenizer(tokenizer_paths(bundle)), constants)
        self.follows_instructions = self._builder.follows_instructions
        self._prefixes, self._references = PrefixCache(bundle, engine.identity), ReferenceStates()
        self._capacity = bundle.job.cache_length

    @property
    def sample_rate(self) -> int:
        return self._constants.sample_rate

    @property
    def samples_per_frame(self) -> int:
        return self._constants.samples_per_frame

    @property
    def max_slots(self) -> int:
        return max_slots(self.bundle.components, BATCHED)

    def estimated_frames(self, text: str) -> float:
        return estimated_frames(text)

    def voices(self) -> dict[str, int]:
        return count_rows(self.bundle, self._constants)

    def bundle_voices(self) -> list[str]:
        return bundle_voices(self.bundle, self._constants)

    def default_bundle_voice(self) -> str | None:
        if self._constants.kind != "base":
            return None
        if not (voices := self.bundle_voices()):
            raise UsageError(f"voice: {self.bundle.folder.name} has none of its own; name one", field="voice")
        return voices[0]

    def voice_checkpoint(self) -> str | None:
        return model_digest(self.bundle) if self._constants.kind == "base" else None

    def check_cloning(self) -> None:
        if self._constants.kind != "base":
            raise self._cloning_unsupported()

    def voice_path(self, name: str) -> Path:
        self.check_cloning()
        folder = user_voices(self.bundle)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.safetensors"

    def make_voice(self, recording: Path, transcript: str | None = None) -> bytes:
        """Without a transcript the voice is a vector only. Raises UsageError."""
        self.check_cloning()
        stream = self.engine.stream()
        rate = recording_rate(stream)
        samples = read_recording(recording, rate)
        reference, seconds = None, len(samples) / rate
        if transcript is not None:
            ids = self._builder.transcript(transcript.strip())
            check_transcript(transcript, seconds, speech_seconds(samples, rate))
            reference = Reference(ids, encode_reference(stream, samples))
        _, vector = speaker_embedding(stream, samples)
        voice, source = Voice(vector, reference), samples.tobytes()
        return self._content(voice, source, transcript, seconds=f"{seconds:.2f}")

    def neutral_voice(self) -> bytes:
        self.check_cloning()
        return self._content(Voice(np.zeros(self._constants.dim, np.float32)), b"", None)

    def import_voice(self, path: Path) -> bytes:
        self.check_cloning()
        found, reference = read_foreign_voice(path), None
        try:
            if found.codes is not None:
                ids = self._builder.transcript(found.transcript or "", "ref_text")
                reference = Reference(ids, found.codes)
            voice = Voice(found.vector, reference)
            check_voice(voice, self._constants)
        except (IntegrityError, UsageError) as error:
            raise UsageError(f"{path}: {error}", field="voice") from None
        return self._content(voice, path.read_bytes(), found.transcript)

    def blend_voices(self, weights: Mapping[str, float]) -> bytes:
        self.check_cloning()
        total = sum(weights.values())
        if len(weights) < 2 or not all(0 < weight < math.inf for weight in weights.values()):
            raise UsageError("voice: expected at least two voices, each with a weight above 0", field="voice")
        voices = {name: choose_voice(self.bundle, self._constants, name) for name in weights}
        if names := ", ".join(name for name, voice in voices.items() if voice.reference):
            log.warning(
                "voice: a blend has no transcribed recording; the recordings of %s are left out", names
            )
        vector = sum(np.asarray(voices[name].speaker) * (weight / total) for name, weight in weights.items())
        source = json.dumps(dict(weights), sort_keys=True).encode()
        return self._content(Voice(np.asarray(vector, np.float32)), source, None)

    def _content(self, voice: Voice, source: bytes, transcript: str | None, **more: str) -> bytes:
        """As `voice_content`. Raises UsageError on a voice that the model could not speak with."""
        try:
            check_voice(voice, self._constants)
        except IntegrityError as error:
            raise UsageError(f"voice: {error}", field="voice") from None
        return voice_content(voice, model_digest(self.bundle), source, transcript, **more)

    def check_sampling(self, sampling: Mapping[str, float]) -> None:
        sampling_of(self._constants, sampling)

    def check_text_layout(self, layout: TextLayout) -> None:
        """Every kind of model takes both."""

    def code_sizes(self) -> tuple[int, ...]:
        return self._constants.code_sizes

    def encode(self, recording: Path) -> np.ndarray:
        stream = self.engine.stream()
        if SPEECH_ENCODER not in stream.signatures:
            raise UsageError("encode: this model has no encoder of recordings; use a bundle of a Base model")
        return encode_reference(stream, read_samples(recording, recording_rate(stream)))

    def decode(self, codes: np.ndarray) -> np.ndarray:
        from voxport.runtime.codes import check_codes

        codes = check_codes(codes, self.code_sizes())
        stream = standard_stream(self.engine.stream(), self._constants)
        return QwenDecoder(stream, self._constants).decode(codes)

    def language(self, voice: str | None) -> str:
        return language_of_voice(voice)

    def check_language(self, language: str) -> str | None:
        return code_of_name(language_name(language, self._constants))

    def fits_prompt(self, voice: str | None, instruct: str | None = None) -> Callable[[str], bool]:
        reference = choose_voice(self.bundle, self._constants, voice).reference
        instruction = self._builder.instruction(instruct)
        rows = {
            "voice": len(reference.codes) + len(reference.text) if reference else 0,
            "instruct": 0 if instruction is None else len(instruction),
        }
        left = self._capacity - FIXED_ROWS - sum(rows.values())
        if left < MIN_TEXT_ROWS:
            name = max(rows, key=rows.__getitem__)
            raise UsageError(
                f"{name}: its {rows[name]} rows leave no room for a text in a cache of {self._capacity}; "
                "give a shorter one, or export with a larger cache length",
                field=name,
            )
        return lambda text: len(self._builder.ids(text)) + estimated_frames(text) <= left

    def open_files(self) -> None:
        self.engine.open_files()

    def slot_decoder(self, slots: int) -> "QwenSlots":
        self.engine.open_ahead(CALLS.keys() | SPLIT_CALLS.keys())  # not the encoders of recordings
        stream = standard_stream(self.engine.batched(slots), self._constants)
        return QwenSlots(stream, self._constants, self._prompt, self._prefixes, self._references)

    def _prompt(self, request: SpeechRequest) -> QwenPrompt:
        """Raises UsageError on what the bundle cannot speak."""
        return self._builder.build(
            request.text,
            choose_voice(self.bundle, self._constants, request.voice),
            AUTO if request.language is None else language_name(request.language, self._constants),
            request.instruct,
            request.text_layout,
        )


class QwenSlots(UtteranceSlots[QwenConstants, QwenDecoder, FrameNoise]):
    """Each utterance has sampling settings and noise of its own."""

    def __init__(
        self,
        stream: Stream,
        constants: QwenConstants,
        prompt: Callable[[SpeechRequest], QwenPrompt],
        prefixes: PrefixCache,
        references: ReferenceStates,
    ):
        super().__init__(stream, constants, FRAME_LOOP, estimated_frames)
        self._prompt, self._prefixes, self._references = prompt, prefixes, references

    def prepare(self, request: SpeechRequest) -> Fill:
        """Builds the rows of the prompt, and reads the stored rows of its prefix. Raises UsageError."""
        sampling, prompt = sampling_of(self._constants, request.sampling), self._prompt(request)
        request = replace(request, max_frames=min(request.max_frames, self._constants.max_frames))
        rows = PromptEmbedder(self._stream.slot(0), self._constants).rows(prompt)
        is_storable = request.store_prefix and request.instruct is None
        key = rows.prefill[: rows.prefix_rows].tobytes()
        prefix = StoredPrefix(key, is_storable, self._prefixes.load(key))

        def read(slot: int, limit: RowLimit) -> Iterator[None]:
            decoder = QwenDecoder(self._stream.slot(slot), self._constants, sampling)
            self._begin(slot, decoder, request)
            yield from read_prompt(decoder, rows, prefix, self._prefixes, limit)
            if prompt.reference is not None:
                yield from self._references.read(decoder, prompt.reference.codes)

        return read

    def replace_codes(self, slot: int, codes: np.ndarray) -> None:
        self._utterances[slot].decoder.replace(int(self.codes(slot)[0]), int(codes[0]))
        super().replace_codes(slot, codes)


TALKER = Call(frozenset({"embeddings", "position"}), frozenset({"hidden", "logits"}))
DRAWING = frozenset({"hidden", "codes", "noise", "temperature", "top_k", "top_p"})

CALLS = {
    "embed_text": Call(frozenset({"ids"}), frozenset({"embeddings"})),
    "embed_codes": Call(frozenset({"codes"}), frozenset({"embeddings"})),
    "prefill": TALKER,
    "decode_step": TALKER,
    "code_predictor": Call(DRAWING, frozenset({"chosen", "logits"})),
    "codec_step": Call(frozenset({"codes", "position"}), frozenset({"audio"}), frozenset({"T"})),
}
EMBEDDER = Call(frozenset({"input_ids"}), frozenset({"input_embeds"}))
ONE_POSITION = frozenset({"input_embeds", "cache_length", *MASKS})
SPLIT_CALLS = {
    "text_projector": EMBEDDER,
    "code_embedder": EMBEDDER,
    "multi_code_embedder": EMBEDDER,
    "code_decoder": Call(ONE_POSITION, frozenset({"logits", "hidden_states"})),
    "multi_code_decoder": Call(ONE_POSITION, frozenset({"all_logits"})),
    "speech_decoder": Call(frozenset({"audio_codes"}), frozenset({"audio"})),
}

FAMILY = RuntimeFamily[QwenConstants](
    name="qwen3_tts",
    task=TextToSpeech,
    calls=lambda job: SPLIT_CALLS if job.options.get("split") == "six" else CALLS,
    constants=QwenConstants,
    voices=lambda bundle: count_rows(bundle, parse_constants(QwenConstants, bundle.job.constants)),
    open=QwenTextToSpeech,
    workloads="voxport.runtime.families.qwen3_tts.workload",
)
