"""The engine thread of a bundle reads no file after its first pass: other threads prepare the texts."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from support.runtime.prefix_caches import private_prefix_cache, wait_until_written
from support.runtime.speech_tasks import qwen_engines, qwen_task
from support.serve.http_server import running
from support.serve.toy_speech_task import ToySpeechTask

from voxport.runtime import prefix_cache
from voxport.runtime.audio.files import pcm16
from voxport.runtime.families.qwen3_tts import task as qwen
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.speech_request import SpeechOptions
from voxport.runtime.text_to_speech import TextToSpeech

TEXT = ("One two three four five six seven. " * 10).strip()  # has two parts at least


def toy_task(folder: Path) -> tuple[TextToSpeech, str]:
    task = ToySpeechTask()
    task._prefixes = private_prefix_cache()
    return task, "anna"


def qwen_base(folder: Path) -> tuple[TextToSpeech, str]:
    task, voice = qwen_task(qwen_engines()), folder / "voice.safetensors"
    soundfile.write(folder / "sound.wav", 0.3 * np.sin(np.arange(24_000) / 20), 24_000)
    voice.write_bytes(task.make_voice(folder / "sound.wav"))
    return task, str(voice)


def threads_of(patch: pytest.MonkeyPatch, module: object, name: str) -> list[str]:
    """Names of the threads that call a function."""
    call, names = getattr(module, name), []

    def noted(*rest: Any, **options: Any) -> Any:
        names.append(threading.current_thread().name)
        return call(*rest, **options)

    patch.setattr(module, name, noted)
    return names


async def spoken(worker: SpeechWorker, options: SpeechOptions) -> bytes:
    job = worker.submit(await asyncio.to_thread(worker.prepare, TEXT, options), "")
    pieces = []
    while (block := await job.read()) is not None:
        pieces.append(block)
    return b"".join(pieces)


@pytest.mark.slow
@pytest.mark.parametrize("make", [toy_task, qwen_base])
def test_stored_rows_and_voices_are_read_by_the_threads_that_prepare(
    make: Callable[[Path], tuple[TextToSpeech, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rows stay in memory, so each part of the text reads the file."""
    task: Any
    task, voice = make(tmp_path)
    options: SpeechOptions = {"voice": voice, "seed": 3}
    expected = pcm16(np.concatenate(list(task.speak(TEXT, **options))))
    wait_until_written()
    with running({"voiced": task}) as server:
        worker = server.models.speech_workers["voiced"]
        monkeypatch.setattr(prefix_cache, "MAX_MEMORY_BYTES", 0)
        monkeypatch.setattr(task._prefixes, "keep", lambda prefix, rows: None)
        task._prefixes._recent.clear()
        opened = threads_of(monkeypatch, prefix_cache, "safe_open")
        read = threads_of(monkeypatch, qwen, "choose_voice")
        assert asyncio.run(spoken(worker, options)) == expected
        assert len(opened) >= 2 and worker._thread.name not in {*opened, *read}
        assert bool(read) == (make is qwen_base)
