"""The Qwen3-TTS family: text to speech."""

from voxport.bundle.constants.qwen3_tts import Constants
from voxport.runtime.families.base import Call, RuntimeFamily, parse_constants
from voxport.runtime.families.qwen3_tts.split_stream import MASKS
from voxport.runtime.families.qwen3_tts.task import QwenTextToSpeech
from voxport.runtime.families.qwen3_tts.voices import count_rows
from voxport.runtime.families.qwen3_tts.workload import BENCH, TRACE, VERIFICATION
from voxport.runtime.text_to_speech import TextToSpeech

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

FAMILY = RuntimeFamily[Constants](
    name="qwen3_tts",
    task=TextToSpeech,
    calls=lambda job: SPLIT_CALLS if job.options.get("split") == "six" else CALLS,
    constants=Constants,
    voices=lambda bundle: count_rows(bundle, parse_constants(Constants, bundle.job.constants)),
    open=QwenTextToSpeech,
    trace=TRACE,
    verification=VERIFICATION,
    bench=BENCH,
)
