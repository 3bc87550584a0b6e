"""The engine thread of a bundle reads no file after its first pass: other threads prepare the texts."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from support.runtime.prefix_caches import private_prefix_cache, wait_until_written
from support.serve.http_server import running
from support.serve.toy_speech_task import ToySpeechTask

from voxport.runtime import prefix_cache
from voxport.runtime.audio.files import pcm16
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.speech_request import SpeechOptions

TEXT = ("One two three four five six seven. " * 10).strip()  # has two parts at least


def threads_of(patch: pytest.MonkeyPatch, module: object, name: str) -> list[str]:
    """Names of the threads that call a function."""
    call, names = getattr(module, name), []

    def noted(*rest: Any, **options: Any) -> Any:
        names.append(threading.current_thread().name)
        return call(*rest, **options)

    patch.setattr(module, name, noted)
    return names


async def spoken(worker: SpeechWorker, options: SpeechOptions) -> bytes:
    job = worker.submit(await asyncio.to_thread(worker.prepare, TEXT, options))
    pieces = []
    while (block := await job.read()) is not None:
        pieces.append(block)
    return b"".join(pieces)


def test_stored_rows_are_read_by_the_threads_that_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rows stay in memory, so each part of the text reads the file."""
    task, options = ToySpeechTask(), SpeechOptions(voice="anna", seed=3)
    task._prefixes = private_prefix_cache()
    expected = pcm16(np.concatenate(list(task.speak(TEXT, **options))))
    wait_until_written()
    with running({"voiced": task}) as server:
        worker = server.models.speech_workers["voiced"]
        monkeypatch.setattr(prefix_cache, "MAX_MEMORY_BYTES", 0)
        monkeypatch.setattr(task._prefixes, "keep", lambda prefix, rows: None)
        task._prefixes._recent.clear()
        opened = threads_of(monkeypatch, prefix_cache, "safe_open")
        assert asyncio.run(spoken(worker, options)) == expected
        assert len(opened) >= 2 and worker._thread.name not in opened
