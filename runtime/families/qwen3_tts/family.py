"""The Qwen3-TTS family: text to speech."""

from runtime.families.base import Call, RuntimeFamily
from runtime.families.qwen3_tts.bench import BENCH
from runtime.families.qwen3_tts.constants import Constants, parse_constants
from runtime.families.qwen3_tts.task import QwenTextToSpeech
from runtime.families.qwen3_tts.tokenizer import QwenTokenizer
from runtime.families.qwen3_tts.trace import TRACE
from runtime.families.qwen3_tts.verification import VERIFICATION
from runtime.families.qwen3_tts.voices import count_rows
from runtime.text_to_speech import TextToSpeech

TALKER = Call(frozenset({"embeddings", "position"}), frozenset({"hidden", "logits"}))
DRAWING = frozenset({"hidden", "codes", "noise", "temperature", "top_k", "top_p"})

FAMILY = RuntimeFamily[Constants](
    name="qwen3_tts",
    task=TextToSpeech,
    calls={
        "embed_text": Call(frozenset({"ids"}), frozenset({"embeddings"})),
        "embed_codes": Call(frozenset({"codes"}), frozenset({"embeddings"})),
        "prefill": TALKER,
        "decode_step": TALKER,
        "code_predictor": Call(DRAWING, frozenset({"chosen", "logits"})),
        "codec_step": Call(frozenset({"codes", "position"}), frozenset({"audio"})),
    },
    parse_constants=parse_constants,
    open_tokenizer=QwenTokenizer,
    voices=lambda bundle: count_rows(bundle, parse_constants(bundle.job)),
    open=QwenTextToSpeech,
    trace=TRACE,
    verification=VERIFICATION,
    bench=BENCH,
)
