"""The Voxtral-TTS family: text to speech."""

from voxport.runtime.families.base import Call, RuntimeFamily
from voxport.runtime.families.voxtral_tts.decoder import Constants, parse_constants
from voxport.runtime.families.voxtral_tts.task import VoxtralTextToSpeech
from voxport.runtime.families.voxtral_tts.voices import count_rows
from voxport.runtime.families.voxtral_tts.workload import BENCH, TRACE, VERIFICATION
from voxport.runtime.text_to_speech import TextToSpeech

BACKBONE = Call(frozenset({"embeddings", "position"}), frozenset({"hidden", "semantic_logits", "condition"}))


FAMILY = RuntimeFamily[Constants](
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
    parse_constants=parse_constants,
    voices=lambda bundle: count_rows(bundle, parse_constants(bundle.job.constants, bundle.job.options).dim),
    open=VoxtralTextToSpeech,
    trace=TRACE,
    verification=VERIFICATION,
    bench=BENCH,
)
