"""The family object of the toy family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exercises.toy_runtime.decoder import Constants, Letters, parse_constants
from exercises.toy_runtime.task import ToyTextToSpeech
from exercises.toy_runtime.workloads import ToyBench, ToyTrace, ToyVerification

from bundle.bundle import Bundle
from bundle.manifest import ExportJob
from runtime.engines.base import Engine
from runtime.families.base import Call, RuntimeFamily
from runtime.text.tokenizer import tokenizer_paths
from runtime.text_to_speech import TextToSpeech

DECODER = Call(frozenset({"x", "position"}), frozenset({"y"}))


class Toy:
    """See `RuntimeFamily`."""

    name = "toy"
    task = TextToSpeech
    calls = {"prefill": DECODER, "decode_step": DECODER}  # noqa: RUF012  read-only, as the protocol says
    trace = ToyTrace()
    verification = ToyVerification()
    bench = ToyBench()

    def parse_constants(self, job: ExportJob) -> Constants:
        return parse_constants(job)

    def open_tokenizer(self, paths: Sequence[Path]) -> Letters:
        return Letters(paths)

    def voices(self, bundle: Bundle) -> dict[str, int]:
        return {}

    def open(self, bundle: Bundle, engine: Engine, constants: Constants) -> ToyTextToSpeech:
        return ToyTextToSpeech(engine, constants, Letters(tokenizer_paths(bundle)))


FAMILY: RuntimeFamily[Constants] = Toy()
