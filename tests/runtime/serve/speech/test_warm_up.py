"""Bundles that refuse a text without a voice or a description run before the server is ready."""

from pathlib import Path

import pytest
from support.serve.http_server import wait_until
from support.serve.tone_speech import ToneSlots, ToneSpeech

from voxport.bundle.errors import UsageError
from voxport.runtime.batching import Fill
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.worker import WARM_UP_TEXT
from voxport.runtime.speech_request import SpeechRequest


class Demanding(ToneSpeech):
    """Speaks only with a value of `field`."""

    def __init__(self, field: str) -> None:
        super().__init__(fault=lambda text, frame: self.spoken.append(text))
        self.field, self.spoken = field, list[str]()
        self.follows_instructions = field == "instruct"

    def slot_decoder(self, slots: int) -> ToneSlots:
        return DemandingSlots(self, slots)

    def neutral_voice(self) -> bytes:
        return b"nobody" if self.field == "voice" else super().neutral_voice()


class DemandingSlots(ToneSlots):
    task: Demanding

    def prepare(self, request: SpeechRequest) -> Fill:
        if not getattr(request, self.task.field):
            raise UsageError(f"{self.task.field}: is missing", field=self.task.field)
        if self.task.field == "voice":
            assert Path(str(request.voice)).read_bytes() == b"nobody"
        return super().prepare(SpeechRequest(request.text, max_frames=request.max_frames))


def ready(task: Demanding) -> None:
    models = Models({"a": task}, Limits(), 1)
    models.start()
    wait_until(lambda: models.is_ready, 60)
    models.drain(0)


@pytest.mark.parametrize("field", ["instruct", "voice"])
def test_a_bundle_that_needs_something_of_its_clients_is_ready_after_its_first_pass(field: str) -> None:
    task = Demanding(field)
    ready(task)
    assert task.spoken == [WARM_UP_TEXT]


def test_a_bundle_that_refuses_every_text_is_ready_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = Demanding("seed")
    ready(task)
    assert task.spoken == [] and "its first request takes longer" in caplog.text
