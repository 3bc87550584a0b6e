"""The Qwen3-ASR family: speech to text in 30 languages."""

from dataclasses import replace
from typing import Unpack

from voxport.bundle.constants.qwen3_asr import ALIGN, CODES, ENCODER, Qwen3ASRConstants
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle, ExportJob
from voxport.runtime.engines.base import Engine
from voxport.runtime.families import Call, RuntimeFamily, tokenizer_paths
from voxport.runtime.families.qwen3_asr.aligner import QwenAligner
from voxport.runtime.families.qwen3_asr.answer import Request
from voxport.runtime.families.qwen3_asr.encoder import rows_of
from voxport.runtime.families.qwen3_asr.features import frames_of
from voxport.runtime.families.qwen3_asr.streaming import StreamSettings
from voxport.runtime.families.qwen3_asr.text import Tokenizer
from voxport.runtime.families.qwen3_asr.transcriptions import (
    LiveTranscription,
    Parts,
    RecordingTranscription,
)
from voxport.runtime.forced_alignment import ForcedAlignment
from voxport.runtime.single_stream import SingleStreamBatch
from voxport.runtime.speech_to_text import LiveBatch, SpeechToText, Transcription, TranscriptionOptions
from voxport.runtime.text.languages import AUTO, check_language

CHUNKS_MS = (2000, 1000, 500, 4000)  # of live sound; the first is the official one
STEP = Call(frozenset({"embeddings", "position"}), frozenset({"hidden", "logits"}))


class QwenSpeechToText(SpeechToText):
    """Each transcription uses a stream of its own on the shared engine."""

    max_live, delays_ms = 1, CHUNKS_MS
    has_hints, has_word_times, is_steady = True, False, False
    ignored, live_only = ("chunk", "blank_penalty"), ("delay_ms",)

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

    def open_files(self) -> None:
        self._engine.open_files()

    def check_live(self) -> None:
        """Every bundle can."""

    def check_context(self, context: str) -> None:
        self._parts.longest_s(Request(context=context))

    def count_tokens(self, text: str, seconds: float) -> tuple[int, int]:
        frames = frames_of(round(seconds * self.sample_rate), self._parts.constants)
        return rows_of(frames, self._parts.constants), len(self._parts.tokenizer.encode(text))

    def begin(self, **options: Unpack[TranscriptionOptions]) -> Transcription:
        code = check_language(options.get("language") or AUTO, self.languages)
        request = Request(self._names[code] if code else "", options.get("context", ""))
        self._engine.open_ahead()
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


def _calls(job: ExportJob) -> dict[str, Call]:
    found = {
        "embed_tokens": Call(frozenset({"ids"}), frozenset({"embeddings"})),
        ENCODER: Call(frozenset({"mel", "frames", "is_short"}), frozenset({"embeddings"}), frozenset({"C"})),
    }
    if job.constants.get("aligner"):
        return found | {ALIGN: Call(STEP.inputs, frozenset({"logits"}), frozenset({"S"}))}
    return found | {"prefill": replace(STEP, dims=frozenset({"S"})), "decode_step": STEP}


def _task(job: ExportJob) -> type[SpeechToText] | type[ForcedAlignment]:
    return ForcedAlignment if job.constants.get("aligner") else SpeechToText


def _open(bundle: Bundle, engine: Engine, constants: Qwen3ASRConstants) -> QwenSpeechToText | QwenAligner:
    tokenizer, job = Tokenizer(tokenizer_paths(bundle), constants), bundle.job
    if constants.aligner:
        return QwenAligner(engine, constants, tokenizer, job.cache_length, job.languages)
    return QwenSpeechToText(engine, Parts(constants, tokenizer, job.cache_length))


FAMILY = RuntimeFamily[Qwen3ASRConstants](
    name="qwen3_asr",
    task=SpeechToText,
    calls=_calls,
    constants=Qwen3ASRConstants,
    voices=lambda bundle: {},
    open=_open,
    workloads="voxport.runtime.families.qwen3_asr.workload",
    task_of=_task,
)
