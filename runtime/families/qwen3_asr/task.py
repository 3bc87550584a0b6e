"""The Qwen3-ASR family: speech to text in 30 languages."""

from dataclasses import replace
from typing import Unpack

from voxport.bundle.constants.qwen3_asr import CODES, ENCODER, Qwen3ASRConstants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.bundle.names import language_code
from voxport.runtime.engines.base import Engine
from voxport.runtime.families import Call, RuntimeFamily, tokenizer_paths
from voxport.runtime.families.qwen3_asr.answer import Request
from voxport.runtime.families.qwen3_asr.streaming import StreamSettings
from voxport.runtime.families.qwen3_asr.text import Tokenizer
from voxport.runtime.families.qwen3_asr.transcriptions import (
    LiveTranscription,
    Parts,
    RecordingTranscription,
)
from voxport.runtime.single_stream import SingleStreamBatch
from voxport.runtime.speech_to_text import LiveBatch, SpeechToText, Transcription, TranscriptionOptions
from voxport.runtime.text.languages import AUTO

CHUNKS_MS = (2000, 1000, 500, 4000)  # of live sound; the first is the official one
STEP = Call(frozenset({"embeddings", "position"}), frozenset({"hidden", "logits"}))


class QwenSpeechToText(SpeechToText):
    """Each transcription uses a stream of its own on the shared engine."""

    max_live = 1
    delays_ms = CHUNKS_MS

    def __init__(self, engine: Engine, parts: Parts):
        self._engine, self._parts = engine, parts
        self._names = {CODES[name]: name for name in parts.constants.languages if name in CODES}
        self.languages = tuple(self._names)

    @property
    def sample_rate(self) -> int:
        return self._parts.constants.sample_rate

    @property
    def max_chunk_tokens(self) -> int:
        constants = self._parts.constants
        return constants.window_chunks * constants.chunk_frames * constants.hop_length // 1280

    def check_live(self) -> None: ...  # every bundle can

    def begin(self, **options: Unpack[TranscriptionOptions]) -> Transcription:
        request = Request(self._name_of(options.get("language")), options.get("context", ""))
        stream = self._engine.stream()
        if not options.get("live"):
            return RecordingTranscription(stream, self._parts, request)
        chunk = options.get("delay_ms") or CHUNKS_MS[0]
        if chunk not in CHUNKS_MS:
            raise UsageError(
                f"delay_ms {chunk}: expected one of {', '.join(map(str, CHUNKS_MS))}", field="delay_ms"
            )
        return LiveTranscription(stream, self._parts, request, StreamSettings(chunk / 1000))

    def live_batch(self, slots: int) -> LiveBatch:
        if slots > self.max_live:
            raise UsageError(f"live: one step serves {self.max_live} stream, not {slots}")
        return SingleStreamBatch(self.begin)

    def _name_of(self, language: str | None) -> str:
        """The name of a language by its name or code in any case; empty if the model finds it."""
        if not language or language.lower() == AUTO:
            return ""
        code = language_code(language)
        if code not in self._names:
            known = ", ".join(f"{code} ({name})" for code, name in self._names.items())
            raise UsageError(f"language {language!r}: expected one of {known}, or {AUTO}", field="language")
        return self._names[code]


def _open(bundle: Bundle, engine: Engine, constants: Qwen3ASRConstants) -> QwenSpeechToText:
    tokenizer = Tokenizer(tokenizer_paths(bundle), constants)
    return QwenSpeechToText(engine, Parts(constants, tokenizer, bundle.job.cache_length))


FAMILY = RuntimeFamily[Qwen3ASRConstants](
    name="qwen3_asr",
    task=SpeechToText,
    calls=lambda job: {
        "embed_tokens": Call(frozenset({"ids"}), frozenset({"embeddings"})),
        ENCODER: Call(frozenset({"mel", "frames", "is_short"}), frozenset({"embeddings"}), frozenset({"C"})),
        "prefill": replace(STEP, dims=frozenset({"S"})),
        "decode_step": STEP,
    },
    constants=Qwen3ASRConstants,
    voices=lambda bundle: {},
    open=_open,
    workloads="voxport.runtime.families.qwen3_asr.workload",
)
