"""The engine thread of a bundle that speaks: readiness, order, and time to a retry."""

import asyncio
import io
import logging
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.datastructures import UploadFile
from support.serve.http_server import running, wait_until
from support.serve.loud_to_text import LoudToText
from support.serve.speech_requests import TEXT, post_in_order, post_speech, speech_body
from support.serve.tone_speech import FRAME, ToneSpeech

from voxport.runtime.serve.http import uploads
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech import settings
from voxport.runtime.serve.speech.worker import WARM_UP_TEXT

SENTENCE = "a" * 200 + "."  # is a part of a text


def test_a_bundle_is_ready_after_its_first_pass() -> None:
    gate, task = threading.Event(), ToneSpeech(fault=lambda text, frame: None)
    task.fault = lambda text, frame: gate.wait(30) and None
    models = Models({"tone": task}, Limits())
    models.start()
    wait_until(lambda: list(task.running.values()) == [WARM_UP_TEXT])
    assert not models.is_ready and not models.has_failed  # Ray replaces a replica that has failed
    gate.set()
    wait_until(lambda: models.is_ready)
    assert not task.running
    models.drain(0)


def test_a_bundle_that_fails_its_first_pass_is_never_ready(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    transcription = LoudToText(is_live=False)
    transcription.before_feed = fail
    for task in (ToneSpeech(fault=fail), transcription):
        models = Models({"a": task}, Limits())
        models.start()
        (worker,) = models.workers
        worker._thread.join(10)
        assert not models.is_ready and models.has_failed
        assert "planted" in caplog.text
        caplog.clear()


def test_texts_are_spoken_in_order_and_the_parts_of_one_follow_each_other() -> None:
    order: list[str] = []
    task = ToneSpeech(fault=lambda text, frame: order.append(text) if not frame else None)
    task.gate.clear()
    with running({"tone": task}, slots=1) as server:
        order.clear()
        texts = (" ".join([SENTENCE] * 3), "The second.", "The third.")
        answers = post_in_order(server, *(speech_body(input=text) for text in texts))
        task.gate.set()
        assert [answer.result(20).status_code for answer in answers] == [200] * 3
    assert order == [SENTENCE] * 3 + ["The second.", "The third."]


def test_texts_wait_while_the_samples_of_all_requests_fill_the_buffers() -> None:
    """A part needs 1 MiB of the 1 MiB. The first text is spoken, but nothing of it is read."""
    limits = Limits(buffers_mib=1, job_buffer_mib=1)

    async def speak() -> None:
        models = Models({"tone": ToneSpeech()}, limits, 2)
        models.start()
        worker = models.speech_workers["tone"]
        unread, waiting = (worker.submit(worker.prepare(TEXT, {})) for _ in range(2))
        await asyncio.to_thread(wait_until, lambda: unread.frames and not worker._running)
        await asyncio.sleep(0.1)
        assert unread.buffered and not waiting.frames, "not even while the first one ran"
        unread.cancel()
        await asyncio.to_thread(wait_until, lambda: worker.is_idle)
        assert waiting.buffered == 2 * FRAME * len(TEXT)
        models.drain(0)

    asyncio.run(speak())


@pytest.mark.parametrize(("asked", "used"), [(2, 2), (64, 4)])
def test_the_number_of_slots_is_logged(asked: int, used: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "voxport.runtime.serve"):
        Models({"tone": ToneSpeech()}, Limits(), asked)
    assert f"tone: at most {used} texts at a time" in caplog.text


def test_a_full_queue_refuses_with_a_time_to_a_retry() -> None:
    task = ToneSpeech()
    task.gate.clear()
    with running({"tone": task}, Limits(waiting=1), slots=1) as server:
        answers = post_in_order(server, speech_body(), speech_body())
        refused = post_speech(server, speech_body())
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "server_is_overloaded"
        task.gate.set()
        assert [answer.result(20).status_code for answer in answers] == [200, 200]


def test_an_encoder_that_fails_leaves_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    task = ToneSpeech()
    with running({"tone": task}) as server:
        worker = server.models.speech_workers["tone"]
        monkeypatch.setattr(settings, "make_encoder", fail)
        assert post_speech(server, speech_body(response_format="mp3")).status_code == 500
        monkeypatch.undo()
        assert worker.is_idle and server.metric("frames_total", bundle="tone") == 0
        assert len(post_speech(server, speech_body()).content) == 2 * FRAME * len(TEXT)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "other"}, 404),
        ({"diarize": "true"}, 400),
        ({"delay_ms": "81"}, 400),
        ({"stream": "x"}, 400),
    ],
)
def test_a_recording_that_is_refused_is_not_stored(
    fields: dict[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", None)  # a call would be a TypeError, and status 500
    with running({"loud": LoudToText()}) as server:
        answer = httpx2.post(
            f"{server.url}/v1/audio/transcriptions",
            data={"model": "loud", **fields},
            files={"file": ("a.wav", b"RIFF")},
        )
    assert answer.status_code == status


def test_an_upload_whose_request_is_cancelled_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gate, begun = threading.Event(), threading.Event()

    def copy(source: object, target: object) -> None:
        begun.set()
        gate.wait(10)

    monkeypatch.setattr(shutil, "copyfileobj", copy)

    async def cancelled() -> None:
        upload: Any = UploadFile(io.BytesIO())
        storing = asyncio.ensure_future(uploads.stored_upload(upload, "file").__aenter__())
        await asyncio.to_thread(begun.wait, 10)
        storing.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await storing

    asyncio.run(cancelled())
    assert list(Path(tmp_path).iterdir()) == []
