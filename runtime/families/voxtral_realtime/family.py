"""The family object of Voxtral-Realtime."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bundle.bundle import Bundle
from bundle.manifest import ExportJob
from runtime.engines.base import Engine
from runtime.families.base import Call, RuntimeFamily
from runtime.families.voxtral_realtime.bench import Bench
from runtime.families.voxtral_realtime.constants import Constants, parse_constants
from runtime.families.voxtral_realtime.encoder import ENCODER, LIVE_ENCODER
from runtime.families.voxtral_realtime.task import VoxtralSpeechToText
from runtime.families.voxtral_realtime.trace import Trace
from runtime.families.voxtral_realtime.verification import Verification
from runtime.speech_to_text import SpeechToText
from runtime.text.tokenizer import load_pieces, tekken_path, tokenizer_paths

STEP = Call(frozenset({"embeddings", "position", "delay"}), frozenset({"hidden", "logits"}))


class VoxtralRealtime:
    """See `RuntimeFamily`."""

    name = "voxtral_realtime"
    task = SpeechToText
    calls = {  # noqa: RUF012  read-only, as the protocol says
        "embed_tokens": Call(frozenset({"ids"}), frozenset({"embeddings"})),
        ENCODER: Call(frozenset({"mel", "position"}), frozenset({"embeddings"})),
        "prefill": STEP,
        "decode_step": STEP,
    }
    trace = Trace()
    verification = Verification()
    bench = Bench()

    def parse_constants(self, job: ExportJob) -> Constants:
        """Raises IntegrityError that names a wrong constant."""
        return parse_constants(job)

    def open_tokenizer(self, paths: Sequence[Path]) -> Callable[[int], bytes]:
        """A function from token ids to bytes. Raises IntegrityError that names the file."""
        return load_pieces(tekken_path(paths))

    def voices(self, bundle: Bundle) -> dict[str, int]:
        return {}

    def open(self, bundle: Bundle, engine: Engine, constants: Constants) -> VoxtralSpeechToText:
        token_bytes = self.open_tokenizer(tokenizer_paths(bundle))
        is_live = LIVE_ENCODER in {entry.name for entry in bundle.components}
        return VoxtralSpeechToText(engine, constants, token_bytes, is_live)


FAMILY: RuntimeFamily[Constants] = VoxtralRealtime()
