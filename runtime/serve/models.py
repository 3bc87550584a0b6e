"""`Models`: the bundles that the server has opened, by name."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from voxport.bundle.errors import UsageError
from voxport.bundle.files import link_name
from voxport.bundle.manifest import Bundle
from voxport.bundle.names import find_name
from voxport.runtime.engines.base import DEFAULT, EngineOptions
from voxport.runtime.families.qwen3_asr.aligned import AlignedSpeechToText
from voxport.runtime.forced_alignment import ForcedAlignment
from voxport.runtime.opening import open_bundle, task_of
from voxport.runtime.serve.aliases import (
    SPEECH_MODELS,
    TRANSCRIPTION_MODELS,
    Aliases,
    is_one_of,
    listed,
    spellings,
)
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.limits import MIB, Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.speech.job import BufferPool
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.serve.voices.store import VoiceStore
from voxport.runtime.speech_request import DEFAULT_SLOTS
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.text_to_speech import TextToSpeech

Worker = SpeechWorker | TranscriptionWorker
AnyWorker = TypeVar("AnyWorker", SpeechWorker, TranscriptionWorker)
Task = TextToSpeech | SpeechToText | ForcedAlignment
NO_ALIASES = Aliases()
log = logging.getLogger(__name__)


class Models:
    """One worker per bundle. Requests name a bundle by the name of its folder."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        limits: Limits,
        slots: int = DEFAULT_SLOTS,
        voices: VoiceStore | None = None,
        aliases: Aliases = NO_ALIASES,
        is_strict: bool = False,
    ):
        """`voices` stores the voices that clients make; None if they cannot. A strict server refuses fields
        of requests that have no effect. Raises UsageError on an alias of a bundle that is not served.

        `is_draining` is True while the server shuts down. `aligners` has when each was opened.
        """
        self.limits, self.metrics, self.voices, self.is_draining = limits, Metrics(), voices, False
        self.aliases, self.is_strict = aliases, is_strict
        aligners = (name for name, task in tasks.items() if isinstance(task, ForcedAlignment))
        self.aligners = dict.fromkeys(aligners, int(time.time()))
        aliases.check((name for name in tasks if name not in self.aligners), self.aligners)
        pool = BufferPool(limits.buffers_mib * MIB)
        self.speech_workers: dict[str, SpeechWorker] = {}
        self.transcription_workers: dict[str, TranscriptionWorker] = {}
        for name, task in tasks.items():
            if isinstance(task, TextToSpeech):
                self.speech_workers[name] = SpeechWorker(name, task, limits, self.metrics, pool, slots)
            elif isinstance(task, SpeechToText):
                self.transcription_workers[name] = TranscriptionWorker(name, task, limits, self.metrics)
        if voices:
            workers = self.speech_workers.values()
            voices.assign({worker.name: worker.task.voice_checkpoint() for worker in workers})
        for alias in aliases.unknown_voices(self.speech_workers.values(), voices):
            log.warning("voice alias %s=%s: no bundle has this voice", alias, aliases.voices[alias])
        self.workers: list[Worker] = [*self.speech_workers.values(), *self.transcription_workers.values()]

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    @property
    def names(self) -> list[str]:
        return [*(worker.name for worker in self.workers), *self.aligners]

    @property
    def is_ready(self) -> bool:
        return all(worker.is_ready for worker in self.workers)

    @property
    def has_failed(self) -> bool:
        """Whether an engine takes no work. One that runs for the first time has not failed."""
        return not all(worker.is_open for worker in self.workers)

    def speech_worker(self, name: str | None) -> SpeechWorker:
        """The one that a request names, or the first one. Raises ApiError."""
        return self._find(self.speech_workers, name, SPEECH_MODELS, "speaks")

    def transcription_worker(self, name: str | None) -> TranscriptionWorker:
        """The one that a request names, or the first one. Raises ApiError."""
        return self._find(self.transcription_workers, name, TRANSCRIPTION_MODELS, "transcribes")

    def live_worker(self, name: str | None) -> TranscriptionWorker:
        """The one that a request names, or the first one for live audio. Raises ApiError."""
        live = {worker.name: worker for worker in self.transcription_workers.values() if worker.live_slots}
        if name is None or self.bundle_of(name) is None:
            return self._find(live, name, TRANSCRIPTION_MODELS, "transcribes live audio")
        worker = self.transcription_worker(name)
        if worker.name not in live:
            raise ApiError(400, f"{worker.name}: is for recordings only", "model_not_live", "model")
        return worker

    def _find(
        self, workers: Mapping[str, AnyWorker], name: str | None, standard: tuple[str, ...], verb: str
    ) -> AnyWorker:
        """The first one for the names of `standard`, and if no name is given."""
        if name is None and self.is_strict:
            raise ApiError(400, f"model: expected one of {listed(workers)}", "invalid_value", "model")
        bundle = None if name is None else self.bundle_of(name)
        if bundle is not None and bundle in workers:
            return workers[bundle]
        if workers and bundle is None and (name is None or is_one_of(name, standard)):
            return next(iter(workers.values()))
        reason = f"{bundle} is no model that {verb}"
        if bundle is None:
            reason = f"no bundle {verb}" if name is None else f"no model {name[:100]!r}"
        if "diarize" in (name or ""):
            reason += ", and none that names speakers"
        reason = f"{reason}; this server has: {listed(workers)}"
        raise ApiError(404, reason, "model_not_found", "model")

    def bundle_of(self, name: str) -> str | None:
        """The bundle with the name or with the alias, in any case; None if there is none."""
        known = {**self.aliases.models, **{each: each for each in self.names}}
        for spelling in spellings(name):
            if (found := find_name(spelling, known)) in known:
                return known[found]
        return None

    def drain(self, seconds: float) -> None:
        """Refuses new requests, and returns when no request is left, or after `seconds`. Then stops."""
        self.is_draining = True
        for worker in self.workers:
            worker.drain()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not all(worker.is_idle for worker in self.workers):
            time.sleep(0.05)
        for worker in self.workers:
            worker.stop()


def open_bundles(
    folders: list[Path], options: EngineOptions = DEFAULT, check_hashes: bool = True
) -> dict[str, Task]:
    """Tasks by the names of their folders, or of links to these. An aligner among the bundles gives times to
    the words of all recordings. Raises UsageError or IntegrityError.
    """
    aligners = [folder for folder in folders if task_of(Bundle(folder)) is ForcedAlignment]
    if len(aligners) > 1:
        raise UsageError("bundle: there are two aligners; leave one out", field="bundle")
    tasks: dict[str, Task] = {}
    for folder in folders:
        name = link_name(folder)
        if name in tasks:
            raise UsageError(f"bundle: two folders are named {name}; rename one", field="bundle")
        log.info("opening %s", folder)
        tasks[name] = open_bundle(folder, options, check_hashes)
    recognisers = {name: task for name, task in tasks.items() if isinstance(task, SpeechToText)}
    for aligner in [task for task in tasks.values() if isinstance(task, ForcedAlignment)]:
        if not recognisers:
            raise UsageError(
                f"{aligners[0]}: an aligner needs a recogniser; serve its bundle too", field="bundle"
            )
        tasks |= {name: AlignedSpeechToText(task, aligner) for name, task in recognisers.items()}
    return tasks
