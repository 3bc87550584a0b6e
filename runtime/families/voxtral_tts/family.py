"""The Voxtral-TTS family: text to speech."""

from collections.abc import Sequence
from pathlib import Path

from bundle.bundle import Bundle
from bundle.manifest import ExportJob
from runtime.engines.base import Engine
from runtime.families.base import Call
from runtime.families.voxtral_tts.bench import SpeechBench
from runtime.families.voxtral_tts.constants import Constants, parse_constants
from runtime.families.voxtral_tts.task import VoxtralTextToSpeech
from runtime.families.voxtral_tts.tokenizer import SpeechTokenizer, open_tokenizer
from runtime.families.voxtral_tts.trace import SpeechTrace
from runtime.families.voxtral_tts.verification import SpeechVerification
from runtime.families.voxtral_tts.voices import count_rows
from runtime.text_to_speech import TextToSpeech

BACKBONE = Call(frozenset({"embeddings", "position"}), frozenset({"hidden", "semantic_logits", "condition"}))

CALLS = {
    "embed_text": Call(frozenset({"ids"}), frozenset({"embeddings"})),
    "embed_codes": Call(frozenset({"codes"}), frozenset({"embeddings"})),
    "prefill": BACKBONE,
    "decode_step": BACKBONE,
    "acoustic_step": Call(frozenset({"x", "step", "condition"}), frozenset({"next_x", "velocity"})),
    "codec_step": Call(frozenset({"codes", "position"}), frozenset({"audio"})),
}


class VoxtralTts:
    """Implements `RuntimeFamily`."""

    name = "voxtral_tts"
    task = TextToSpeech
    calls = CALLS
    trace = SpeechTrace()
    verification = SpeechVerification()
    bench = SpeechBench()

    def parse_constants(self, job: ExportJob) -> Constants:
        return parse_constants(job)

    def open_tokenizer(self, paths: Sequence[Path]) -> SpeechTokenizer:
        return open_tokenizer(paths)

    def voices(self, bundle: Bundle) -> dict[str, int]:
        return count_rows(bundle, self.parse_constants(bundle.job).dim)

    def open(self, bundle: Bundle, engine: Engine, constants: Constants) -> VoxtralTextToSpeech:
        return VoxtralTextToSpeech(bundle, engine, constants)


FAMILY = VoxtralTts()
