"""The metrics: each is counted, and the dashboard shows them all."""

import json
import re
import time
from collections.abc import Iterator

import httpx2
from support.paths import ROOT
from support.serve.http_server import running, wait_until
from support.serve.loud_to_text import BLOCK, LoudToText
from support.serve.realtime_client import Socket, talk, text_of
from support.serve.speech_requests import TEXT, post_in_order, post_speech, speech_body
from support.serve.tone_speech import FRAME, ToneSlots, ToneSpeech, no_fault

from voxport.runtime.batching import Fill, RowLimit
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.speech_request import SpeechRequest

DASHBOARD = ROOT / "docs" / "grafana.json"
NAMES = {  # with their labels
    "voxport_requests_total": {"route", "code"},
    "voxport_waiting": {"bundle"},
    "voxport_slots_busy": {"bundle"},
    "voxport_slots": {"bundle"},
    "voxport_frames_total": {"bundle"},
    "voxport_pass_seconds_bucket": {"bundle", "le"},
    "voxport_first_sound_seconds_bucket": {"bundle", "le"},
    "voxport_queue_seconds_bucket": {"bundle", "le"},
    "voxport_cancelled_total": {"reason"},
    "voxport_sockets": set(),
    "voxport_late_seconds_total": {"bundle"},
    "voxport_buffer_bytes": set(),
}
SCRAPED = {"job", "instance"}  # labels that Prometheus adds


class SlowPrompts(ToneSpeech):
    """Reads a prompt in four passes, and makes no frame in the first three."""

    def slot_decoder(self, slots: int) -> ToneSlots:
        class Slots(ToneSlots):
            def prepare(self, request: SpeechRequest) -> Fill:
                fill = super().prepare(request)

                def pieces(slot: int, limit: RowLimit) -> Iterator[None]:
                    for _ in range(3):
                        yield
                    yield from fill(slot, limit)

                return pieces

        return Slots(self, slots)


def test_every_metric_has_its_name_and_labels() -> None:
    """A metric with labels has samples once it is counted."""
    metrics = Metrics()
    for name, labels in NAMES.items():
        family = re.sub("_(total|bucket)$", "", name)
        (found,) = [each for each in metrics.registry.collect() if each.name == family]
        collector = next(each for each in vars(metrics).values() if getattr(each, "_name", None) == family)
        assert set(collector._labelnames) == labels - {"le"}, name
        assert found.documentation.endswith(".")


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_the_dashboard_shows_every_metric_with_labels_that_it_has() -> None:
    found = expressions()
    assert {name for each in found for name in re.findall(r"voxport_\w+", each)} == set(NAMES)
    for each in found:
        (name,) = set(re.findall(r"voxport_\w+", each)) - {"voxport_slots"} or {"voxport_slots"}
        grouped = {label for group in re.findall(r"by \(([^)]*)\)", each) for label in group.split(", ")}
        matched = set(re.findall(r"(\w+)=~", each))
        assert grouped | matched <= NAMES[name] | SCRAPED, each
        assert each.count("(") == each.count(")") and matched >= SCRAPED


def test_requests_are_counted_by_route_and_status() -> None:
    with running({"tone": ToneSpeech()}) as server:
        assert post_speech(server, speech_body()).status_code == 200
        post_speech(server, speech_body(input="a" * 5000))
        httpx2.get(f"{server.url}/v1/models/some-name")
        httpx2.get(f"{server.url}/some/path")
        text = httpx2.get(f"{server.url}/metrics").text
        assert server.metric("requests_total", route="/v1/audio/speech", code="200") == 1
        assert server.metric("requests_total", route="/v1/audio/speech", code="400") == 1
        assert server.metric("requests_total", route="/v1/models/{name:path}", code="404") == 1
        assert server.metric("requests_total", route="other", code="404") == 1
        assert "some" not in text  # no label comes from a request


def test_frames_are_those_that_were_made_and_passes_are_timed() -> None:
    with running({"tone": SlowPrompts()}) as server:
        post_speech(server, speech_body())
        wait_until(lambda: server.models.speech_workers["tone"].is_idle)
        assert server.metric("frames_total", bundle="tone") == len(TEXT)
        assert server.metric("pass_seconds_count", bundle="tone") == len(TEXT) + 3
        assert server.metric("first_sound_seconds_count", bundle="tone") == 1
        assert server.metric("queue_seconds_count", bundle="tone") == 1


def test_slots_and_the_queue_are_counted() -> None:
    task = ToneSpeech()
    task.gate.clear()
    with running({"tone": task}, slots=1) as server:
        answers = post_in_order(server, *[speech_body()] * 3)
        assert server.metric("slots", bundle="tone") == server.metric("slots_busy", bundle="tone") == 1
        task.fault = lambda text, frame: task.gate.clear()  # one pass
        task.gate.set()
        wait_until(lambda: server.metric("waiting", bundle="tone") == 2)
        task.fault = no_fault
        task.gate.set()
        assert [answer.result(10).status_code for answer in answers] == [200] * 3
        wait_until(lambda: server.metric("slots_busy", bundle="tone") == 0)
        assert server.metric("waiting", bundle="tone") == 0
        assert server.metric("queue_seconds_count", bundle="tone") == 3


def test_unsent_samples_are_counted_until_they_are_sent_or_dropped() -> None:
    with running({"tone": ToneSpeech()}) as server:
        url, body = f"{server.url}/v1/audio/speech", {"model": "tone", "input": "a" * 2000}
        with httpx2.stream("POST", url, json={**body, "response_format": "pcm"}) as response:
            assert response.status_code == 200
            wait_until(lambda: server.metric("buffer_bytes") > 100 * FRAME)
        wait_until(lambda: server.metric("buffer_bytes") == 0)


def test_lateness_is_the_time_that_live_audio_waited() -> None:
    """Two blocks wait 0.3 s for the one before them, and each may wait 80 ms."""
    task = LoudToText()

    async def conversation(socket: Socket) -> None:
        await socket.send("session.update", model="loud")
        await socket.send("input_audio_buffer.append", audio=text_of(bytes(2 * 3 * BLOCK)))
        await socket.send("input_audio_buffer.commit", final=True)
        await socket.until("transcription.done")

    with running({"loud": task}) as server:
        task.before_feed = lambda: time.sleep(0.3)
        talk(server, conversation)
        assert server.metric("late_seconds_total", bundle="loud") > 2 * (0.3 - 0.08)
        assert server.metric("frames_total", bundle="loud") == 3
