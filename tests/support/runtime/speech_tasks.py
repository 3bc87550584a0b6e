"""Text-to-speech tasks without a bundle on disk: Qwen3-TTS in eager, and Voxtral-TTS on the toy engine."""

import shutil
from collections.abc import Callable
from pathlib import Path

from support.export.faulty_engines import BatchedStreams, Engines, StreamEngine, no_fault
from support.files import private_folder
from support.runtime import toy_speech
from support.stand_ins import stand_in

from voxport.bundle.constants.voxtral_tts import LANGUAGES
from voxport.bundle.manifest import MANIFEST
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.runtime.engines.base import Engine, Stream
from voxport.runtime.families.qwen3_tts.task import QwenTextToSpeech
from voxport.runtime.families.voxtral_tts.task import VoxtralTextToSpeech

CACHE = 96


def qwen_engines(checkpoint: Path | None = None) -> Engines:
    """Of the embedded Base model, or of another checkpoint."""
    return Engines(checkpoint or random_checkpoint("qwen3_tts"), "none", cache=CACHE)


def qwen_task(
    engines: Engines, change: Callable[[Stream], Stream] = lambda stream: stream, max_batch: int = 1
) -> QwenTextToSpeech:
    """The task of a tiny model. `change` may replace each stream of its engine."""
    components = {
        each.name: stand_in(name=each.name, signature=each.signature, max_batch=max_batch)
        for each in engines.components
    }
    folder = private_folder()
    for name in engines.source.tokenizer_files:
        shutil.copy(engines.source.folder / name, folder)
    (folder / MANIFEST).write_text(f'"{folder}"')
    bundle = stand_in(
        folder=folder,
        manifest=stand_in(tokenizer=("vocab.json", "merges.txt"), voices={}),
        job=stand_in(source=stand_in(files={}), cache_length=CACHE, languages=()),
        components=tuple(components.values()),
        component=components.__getitem__,
    )
    make: Callable[[], Stream] = lambda: change(engines.faulty(no_fault).stream())
    engine: Engine = StreamEngine(make, lambda size: BatchedStreams(make, size, no_fault))
    return QwenTextToSpeech(bundle, engine, engines.constants)


class ToyVoxtral(VoxtralTextToSpeech):
    """The task of Voxtral-TTS without tokenizer and voices."""

    languages: tuple[str, ...] = LANGUAGES

    def __init__(self) -> None:
        self.engine, self._constants = toy_speech.ToyEngine(), toy_speech.CONSTANTS
