"""A text-to-speech task without a model: a tone with the pitch of the voice, one frame per character."""

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.runtime.batching import Fill, RowLimit, SlotOutput, Status
from voxport.runtime.serve.speech.worker import WARM_UP_TEXT
from voxport.runtime.speech_request import SpeechRequest
from voxport.runtime.text_to_speech import TextToSpeech

RATE, FRAME, LEVEL = 24000, 1920, 0.5
VOICES = {"anna": 440.0, "bob": 220.0}  # Hz


def no_fault(text: str, frame: int) -> None: ...


class ToneSpeech(TextToSpeech):
    """`fault(text, frame)` may raise in a pass. `gate` lets passes run, but for the text at the start of a
    server; `pass_s` is the time of one.
    """

    sample_rate, samples_per_frame, max_slots = RATE, FRAME, 4
    languages = ("en",)

    def __init__(
        self, pass_s: float = 0.0, fault: Callable[[str, int], object] = no_fault, rate: int = RATE
    ) -> None:
        self.sample_rate, self.samples_per_frame = rate, rate * FRAME // RATE
        self.pass_s, self.fault, self.gate = pass_s, fault, threading.Event()
        self.gate.set()
        self.running: dict[int, str] = {}  # by slot

    def voices(self) -> dict[str, int]:
        return dict.fromkeys(VOICES, 1)

    def estimated_frames(self, text: str) -> float:
        return len(text)

    def slot_decoder(self, slots: int) -> "ToneSlots":
        return ToneSlots(self, slots)


def tone(text: str, voice: str = "anna", rate: int = RATE) -> np.ndarray:
    """The samples of a text, float32."""
    count = len(text) * FRAME * rate // RATE
    return (LEVEL * np.sin(2 * np.pi * VOICES.get(voice, 330.0) * np.arange(count) / rate)).astype(np.float32)


class ToneSlots:
    def __init__(self, task: ToneSpeech, slots: int) -> None:
        self.task, self.slots = task, slots
        self._speech: dict[int, tuple[SpeechRequest, np.ndarray, int]] = {}

    def prepare(self, request: SpeechRequest) -> Fill:
        if request.instruct is not None:
            raise UsageError("instruct: this model takes no instruction; leave it out", field="instruct")
        samples = tone(request.text, request.voice or "anna", self.task.sample_rate)

        def fill(slot: int, limit: RowLimit) -> Iterator[None]:
            self._speech[slot] = (request, samples, 0)
            self.task.running[slot] = request.text
            return iter(())

        return fill

    @property
    def is_warming_up(self) -> bool:
        """Whether only the text at the start of a server is spoken."""
        return set(self.task.running.values()) == {WARM_UP_TEXT}

    def feed(self, count: int, first: int = 0) -> None: ...

    def decode(self, count: int, first: int = 0) -> None:
        if not self.is_warming_up:
            self.task.gate.wait(30)
        time.sleep(self.task.pass_s)

    def take(self, slot: int) -> SlotOutput:
        request, samples, frame = self._speech[slot]
        self.task.fault(request.text, frame)
        self._speech[slot] = (request, samples, frame + 1)
        size = self.task.samples_per_frame
        piece = samples[frame * size : (frame + 1) * size]
        is_last = (frame + 1) * size == len(samples)
        if not is_last and frame + 1 == request.max_frames:
            return SlotOutput(piece, Status.LIMIT)
        return SlotOutput(piece, Status.END if is_last else None)

    def texts(self, count: int, first: int = 0) -> list[str]:
        """Texts of the slots of a call."""
        return [self._speech[slot][0].text for slot in range(first, first + count)]

    def free(self, slot: int) -> None:
        del self._speech[slot], self.task.running[slot]

    def move(self, source: int, target: int) -> None:
        self._speech[target] = self._speech.pop(source)
        self.task.running[target] = self.task.running.pop(source)
