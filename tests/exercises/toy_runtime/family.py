"""The family object of the toy family."""

from __future__ import annotations

from exercises.toy_constants import Constants
from exercises.toy_runtime.decoder import Letters
from exercises.toy_runtime.task import ToyTextToSpeech

from voxport.bundle.manifest import Bundle
from voxport.runtime.engines.base import Engine
from voxport.runtime.families import Call, RuntimeFamily, tokenizer_paths
from voxport.runtime.text_to_speech import TextToSpeech

DECODER = Call(frozenset({"x", "position"}), frozenset({"y"}))


def _open(bundle: Bundle, engine: Engine, constants: Constants) -> ToyTextToSpeech:
    return ToyTextToSpeech(engine, constants, Letters(tokenizer_paths(bundle)))


FAMILY = RuntimeFamily[Constants](
    name="toy",
    task=TextToSpeech,
    calls=lambda job: {"prefill": DECODER, "decode_step": DECODER},
    constants=Constants,
    voices=lambda bundle: {},
    open=_open,
    workloads="exercises.toy_runtime.workloads",
)
