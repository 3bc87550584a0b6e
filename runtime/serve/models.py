"""`Models`: the bundles that the server has opened, by name."""

import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from voxport.bundle.errors import UsageError
from voxport.bundle.files import folder_name
from voxport.runtime.engines.base import DEFAULT, EngineOptions
from voxport.runtime.opening import open_bundle
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
log = logging.getLogger(__name__)


class Models:
    """One worker per bundle. Requests name a bundle by the name of its folder."""

    def __init__(
        self,
        tasks: Mapping[str, TextToSpeech | SpeechToText],
        limits: Limits,
        slots: int = DEFAULT_SLOTS,
        voices: VoiceStore | None = None,
        is_strict: bool = False,
    ):
        """`voices` stores the voices that clients make; None if they cannot. A strict server refuses fields
        of requests that have no effect.

        `is_draining` is True while the server shuts down.
        """
        self.limits, self.metrics, self.voices, self.is_draining = limits, Metrics(), voices, False
        self.is_strict = is_strict
        pool = BufferPool(limits.buffers_mib * MIB)
        self.speech_workers: dict[str, SpeechWorker] = {}
        self.transcription_workers: dict[str, TranscriptionWorker] = {}
        for name, task in tasks.items():
            if isinstance(task, TextToSpeech):
                self.speech_workers[name] = SpeechWorker(name, task, limits, self.metrics, pool, slots)
            else:
                self.transcription_workers[name] = TranscriptionWorker(name, task, limits, self.metrics)
        if voices:
            workers = self.speech_workers.values()
            voices.assign({worker.name: worker.task.voice_checkpoint() for worker in workers})
        self._workers: list[Worker] = [*self.speech_workers.values(), *self.transcription_workers.values()]

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    @property
    def names(self) -> list[str]:
        return [worker.name for worker in self._workers]

    @property
    def is_ready(self) -> bool:
        return all(worker.is_ready for worker in self._workers)

    @property
    def has_failed(self) -> bool:
        """Whether an engine takes no work. One that runs for the first time has not failed."""
        return not all(worker.is_open for worker in self._workers)

    def speech_worker(self, name: str | None) -> SpeechWorker:
        """The first one for a request that names none. Raises ApiError."""
        return self._find(self.speech_workers, name, "speaks")

    def transcription_worker(self, name: str | None) -> TranscriptionWorker:
        """The first one for a request that names none. Raises ApiError."""
        return self._find(self.transcription_workers, name, "transcribes")

    def live_worker(self, name: str) -> TranscriptionWorker:
        """Raises ApiError if the bundle is no model for live audio."""
        worker = self.transcription_worker(name)
        if not worker.live_slots:
            raise ApiError(400, f"{name}: is for recordings only", "model_not_live", "model")
        return worker

    def _find(self, workers: Mapping[str, AnyWorker], name: str | None, verb: str) -> AnyWorker:
        if name in workers:
            return workers[name]
        if name is None and self.is_strict:
            raise ApiError(400, "model: is missing; expected the name of one", "invalid_value", "model")
        if name is None and workers:
            return next(iter(workers.values()))
        reason = f"{name or 'no bundle'} is no model that {verb}"
        if name is not None and name not in self.names:
            reason = f"no model {name[:100]!r}"
        raise _not_found(reason, workers)

    def check_name(self, name: str) -> None:
        """Raises ApiError if no bundle has the name."""
        if name not in self.names:
            raise _not_found(f"no model {name[:100]!r}", self.names)

    def drain(self, seconds: float) -> None:
        """Refuses new requests, and returns when no request is left, or after `seconds`. Then stops."""
        self.is_draining = True
        for worker in self._workers:
            worker.drain()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not all(worker.is_idle for worker in self._workers):
            time.sleep(0.05)
        for worker in self._workers:
            worker.stop()


def _not_found(reason: str, names: Iterable[str]) -> ApiError:
    expected = ", ".join(names) or "none"
    return ApiError(404, f"{reason}; this server has: {expected}", "model_not_found", "model")


def open_bundles(
    folders: list[Path], options: EngineOptions = DEFAULT, check_hashes: bool = True
) -> dict[str, TextToSpeech | SpeechToText]:
    """Tasks by the names of their folders. Raises UsageError or IntegrityError."""
    tasks: dict[str, TextToSpeech | SpeechToText] = {}
    for folder in folders:
        name = folder_name(folder)
        if name in tasks:
            raise UsageError(f"bundle: two folders are named {name}; rename one", field="bundle")
        log.info("opening %s", folder)
        tasks[name] = open_bundle(folder, options, check_hashes)
    return tasks
