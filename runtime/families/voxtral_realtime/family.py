"""The family object of Voxtral-Realtime."""

from dataclasses import replace

from voxport.bundle.constants.voxtral_realtime import ENCODER, LIVE_ENCODER, Constants
from voxport.bundle.manifest import Bundle
from voxport.bundle.tekken import load_pieces, tekken_path
from voxport.runtime.engines.base import Engine
from voxport.runtime.families.base import Call, RuntimeFamily, max_slots, tokenizer_paths
from voxport.runtime.families.voxtral_realtime.task import BATCHED, VoxtralSpeechToText
from voxport.runtime.families.voxtral_realtime.workload import BENCH, TRACE, VERIFICATION
from voxport.runtime.speech_to_text import SpeechToText

STEP = Call(frozenset({"embeddings", "position", "delay"}), frozenset({"hidden", "logits"}))


def _open(bundle: Bundle, engine: Engine, constants: Constants) -> VoxtralSpeechToText:
    is_live = LIVE_ENCODER in {entry.name for entry in bundle.components}
    max_live = max_slots(bundle.components, BATCHED)
    token_bytes = load_pieces(tekken_path(tokenizer_paths(bundle)))
    return VoxtralSpeechToText(engine, constants, token_bytes, is_live, max_live, bundle.job.languages)


FAMILY = RuntimeFamily[Constants](
    name="voxtral_realtime",
    task=SpeechToText,
    calls=lambda job: {
        "embed_tokens": Call(frozenset({"ids"}), frozenset({"embeddings"})),
        ENCODER: Call(frozenset({"mel", "position"}), frozenset({"embeddings"}), frozenset({"T"})),
        "prefill": replace(STEP, dims=frozenset({"S"})),
        "decode_step": STEP,
    },
    constants=Constants,
    voices=lambda bundle: {},
    open=_open,
    trace=TRACE,
    verification=VERIFICATION,
    bench=BENCH,
    server_options={"streaming": True},  # live audio
)
