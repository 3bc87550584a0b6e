"""The Voxtral-TTS family: text to speech."""

from voxport.bundle.constants.voxtral_tts import Constants
from voxport.runtime.families.base import Call, RuntimeFamily, parse_constants
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
    constants=Constants,
    voices=lambda bundle: count_rows(bundle, parse_constants(Constants, bundle.job.constants).dim),
    open=VoxtralTextToSpeech,
    trace=TRACE,
    verification=VERIFICATION,
    bench=BENCH,
)
