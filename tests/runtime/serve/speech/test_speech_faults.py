"""Faults of the engine while texts are spoken: what each client gets."""

import json
import logging

import httpx2
import numpy as np
import pytest
from support.serve.http_server import running, wait_until
from support.serve.speech_requests import TEXT, asking, post_in_order, post_speech, speech_body
from support.serve.tone_speech import FRAME, ToneSlots, ToneSpeech, tone

from voxport.runtime.audio.files import pcm16
from voxport.runtime.batching import SlotOutput, Status
from voxport.runtime.serve.speech.job import SpeechJob


class TruncatingSlots(ToneSlots):
    """Each part ends at its second frame."""

    def take(self, slot: int) -> SlotOutput:
        samples, final = super().take(slot)
        return SlotOutput(samples, final or (Status.BUDGET if self._speech[slot][2] == 2 else None))


class TruncatedSpeech(ToneSpeech):
    def slot_decoder(self, slots: int) -> ToneSlots:
        return TruncatingSlots(self, slots)


def test_speech_that_is_cut_off_is_logged_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with running({"tone": TruncatedSpeech()}) as server, caplog.at_level(logging.WARNING):
        lines = post_speech(server, speech_body(stream_format="sse")).text.splitlines()
        assert server.metric("cancelled_total", reason="budget") == 1
    assert json.loads(lines[-2].removeprefix("data: "))["ended"] == "budget"
    logged = [each.getMessage() for each in caplog.records if "cut off" in each.getMessage()]
    assert logged == ["tone: the speech of a text was cut off: budget"]


def fail_at_frame_5(text: str, frame: int) -> None:
    if frame == 5:
        raise RuntimeError("planted")


def test_an_engine_that_fails_after_the_first_samples_ends_events_with_an_error() -> None:
    with running({"tone": ToneSpeech(fault=fail_at_frame_5)}) as server:
        lines = post_speech(server, speech_body(stream_format="sse")).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [each["type"] for each in events] == ["speech.audio.delta"] * 5 + ["speech.audio.error"]
    assert events[-1]["error"]["code"] == "internal_error" and "planted" not in str(events[-1])
    assert "event: speech.audio.error" in lines


def test_an_engine_that_fails_after_the_first_samples_cuts_the_audio_without_its_last_chunk() -> None:
    with (
        running({"tone": ToneSpeech(fault=fail_at_frame_5)}) as server,
        asking(server, TEXT) as client,
    ):
        client.settimeout(5)
        answer = b"".join(iter(lambda: client.recv(2**16), b""))
    assert answer.startswith(b"HTTP/1.1 200 ") and b"transfer-encoding: chunked" in answer.lower()
    assert len(answer) > 5 * 2 * FRAME and not answer.endswith(b"0\r\n\r\n")


def test_an_error_of_one_request_leaves_the_others() -> None:
    def fault(text: str, frame: int) -> None:
        if text.startswith("Wrong"):
            raise RuntimeError("the engine failed")

    task, texts = ToneSpeech(fault=fault), ("Wrong.", "Right.", "Also right.")
    task.gate.clear()
    with running({"tone": task}) as server:
        wrong, *right = post_in_order(server, *(speech_body(input=text) for text in texts))
        task.gate.set()
        assert wrong.result(10).status_code == 500
        assert wrong.result().json()["error"]["code"] == "internal_error"
        assert "Traceback" not in wrong.result().text
        for answer, text in zip(right, texts[1:], strict=True):
            assert answer.result(10).content == pcm16(tone(text))


@pytest.mark.parametrize("frame", [0, 2, len("Wrong.") - 1])
def test_samples_that_cannot_be_handed_out_end_their_request(
    monkeypatch: pytest.MonkeyPatch, frame: int
) -> None:
    """Also the samples of its last frame."""
    put, wrong, failed = SpeechJob.put, tone("Wrong.", "bob"), []

    def failing(job: SpeechJob, samples: np.ndarray) -> None:
        if np.array_equal(samples, wrong[frame * FRAME : (frame + 1) * FRAME]):
            failed.append(job)
            raise MemoryError("planted")
        put(job, samples)

    monkeypatch.setattr(SpeechJob, "put", failing)
    with running({"tone": ToneSpeech(pass_s=0.01)}, slots=2) as server:
        worker = server.models.speech_workers["tone"]
        with asking(server, "Wrong.", voice="bob"):
            assert post_speech(server, speech_body(input="Right.")).content == pcm16(tone("Right."))
            wait_until(lambda: failed and worker.is_idle)
        answer = post_speech(server, speech_body(input="Wrong.", voice="bob", response_format="flac"))
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal_error"
        assert worker.is_ready and len(failed) == 2


def fail_with(task: ToneSpeech, text: str) -> list[int]:
    """Every pass raises in which `text` is spoken. Returns the numbers of texts of such passes."""
    failed: list[int] = []
    make = task.slot_decoder

    def slot_decoder(slots: int) -> ToneSlots:
        decoder = make(slots)
        decode = decoder.decode

        def failing(count: int, first: int = 0) -> None:
            decode(count, first)
            if text in decoder.texts(count, first):
                failed.append(count)
                raise RuntimeError("planted")

        vars(decoder)["decode"] = failing
        return decoder

    vars(task)["slot_decoder"] = slot_decoder
    return failed


def test_a_pass_that_fails_ends_the_text_that_it_fails_with() -> None:
    """One text has sent samples, one fails, and one waits."""
    task, begun_text, later = ToneSpeech(pass_s=0.02), "a" * 200, "The text that waits."
    failed = fail_with(task, TEXT)
    with running({"tone": task}, slots=2) as server:
        with asking(server, begun_text) as begun:
            begun.settimeout(10)
            content = begun.recv(2**16)
            task.gate.clear()
            wrong, right = post_in_order(server, speech_body(), speech_body(input=later))
            task.gate.set()
            content += b"".join(iter(lambda: begun.recv(2**16), b""))
        assert wrong.result(10).status_code == 500
        assert wrong.result().json()["error"]["code"] == "internal_error"
        assert right.result(10).content == pcm16(tone(later))
        assert failed == [2, 1]
        assert content.startswith(b"HTTP/1.1 200 ") and content.endswith(b"0\r\n\r\n")
        assert len(content) > 2 * len(begun_text) * FRAME
        assert httpx2.get(f"{server.url}/readyz").status_code == 200


def test_a_server_that_shuts_down_ends_answers_that_take_longer_than_its_time() -> None:
    """Events end with an error, and audio is cut without its last chunk."""
    task = ToneSpeech(pass_s=0.02)
    with (
        running({"tone": task}, slots=2) as server,
        asking(server, "a" * 1000) as audio,
        asking(server, "a" * 1000, stream_format="sse") as events,
    ):
        answers = []
        for each in (audio, events):
            each.settimeout(10)
            answers.append(each.recv(2**16))
        server.models.drain(0.2)
        for index, each in enumerate((audio, events)):
            while not answers[index].endswith(b"0\r\n\r\n") and (piece := each.recv(2**16)):
                answers[index] += piece
    cut, told = answers
    assert cut.startswith(b"HTTP/1.1 200 ") and not cut.endswith(b"0\r\n\r\n")
    assert told.endswith(b"\r\n0\r\n\r\n")
    last = told.decode().split("event: ")[-1]
    assert last.startswith("speech.audio.error\n")
    error = json.loads(last.partition("data: ")[2].splitlines()[0])["error"]
    assert error["code"] == "server_shutting_down"


def test_a_dead_engine_thread_is_not_ready_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs and what is new gets the same error; the server is not shutting down."""
    task = ToneSpeech()
    task.gate.clear()
    with running({"tone": task}) as server:
        worker = server.models.speech_workers["tone"]
        (asked,) = post_in_order(server, speech_body(response_format="flac"))
        wait_until(lambda: task.running)

        def fail() -> None:
            raise RuntimeError("planted")

        monkeypatch.setattr(worker, "_run_once", fail)
        task.gate.set()
        worker._thread.join(10)
        assert httpx2.get(f"{server.url}/readyz").status_code == 503
        assert httpx2.get(f"{server.url}/healthz").status_code == 200
        for answer in (asked.result(10), post_speech(server, speech_body())):
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_failed"
