"""Turns of live audio: what the engine thread transcribes first, and how many streams it follows."""

import asyncio
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from support.serve.http_server import wait_until
from support.serve.loud_to_text import BLOCK, LoudToText, LoudWords

from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.transcription import live_streams
from voxport.runtime.serve.transcription.job import TranscriptionJob
from voxport.runtime.serve.transcription.worker import RECORDING_TOKENS, TranscriptionWorker
from voxport.runtime.single_stream import SingleStreamBatch
from voxport.runtime.speech_to_text import LiveBatch, LiveStream, TranscriptDelta

ANNA, BOB, RECORDING = 0.25, 0.5, 0.75  # samples of each; the names belong to live clients
ARRIVALS = [(ANNA, BOB), (BOB, ANNA), (ANNA, BOB)]  # live audio in each turn of the recording


class OrderedToText(LoudToText):
    """Has the first sample of each turn in order. `arrive(client)` is called in turns of a recording,
    `heard(client)` in every turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.order = list[float]()
        self.arrive: Callable[[float], object] = lambda client: None
        self.heard: Callable[[float], None] = lambda client: None

    def begin(self, *arguments: object, **options: object) -> LoudWords:
        return OrderedWords(self)

    def listen(self, sample: float) -> None:
        if sample == RECORDING:
            for client in ARRIVALS[self.order.count(RECORDING)]:
                self.arrive(client)
        self.order.append(sample)
        self.heard(sample)


class OrderedWords(LoudWords):
    _task: OrderedToText

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        if samples.any():
            self._task.listen(samples[0])
        return super().feed(samples)


async def ended(job: TranscriptionJob) -> None:
    job.finish()
    async with asyncio.timeout(20):
        while await job.read() is not None:
            pass


def started(task: OrderedToText) -> tuple[TranscriptionWorker, dict[float, TranscriptionJob]]:
    """A worker, and the jobs of two live clients."""
    worker = TranscriptionWorker("a", task, Limits(), Metrics())
    worker.live_slots = 2
    worker.start()
    wait_until(lambda: worker.is_ready)
    return worker, {client: worker.submit_live(object()) for client in (ANNA, BOB)}


def test_live_audio_is_transcribed_before_the_next_turn_of_a_recording() -> None:
    """It arrives for two streams during each turn, and the older audio is the first."""
    task = OrderedToText()

    async def scenario() -> None:
        worker, live = started(task)
        task.arrive = lambda client: live[client].feed(np.full(BLOCK, client, np.float32))
        recording = worker.submit()
        recording.feed(np.full(len(ARRIVALS) * RECORDING_TOKENS * BLOCK, RECORDING, np.float32))
        for job in (recording, *live.values()):
            await ended(job)
        worker.stop()

    asyncio.run(scenario())
    assert task.order == [sample for clients in ARRIVALS for sample in (RECORDING, *clients)]


def test_audio_that_is_ahead_delays_another_batch_by_one_step() -> None:
    """Anna has sent ten steps when Bob's first one arrives, which is during the first of hers."""
    task = OrderedToText()

    async def scenario() -> None:
        worker, live = started(task)
        bob = live[BOB]

        def talk(client: float) -> None:
            if client == ANNA and bob.seconds == 0:
                bob.feed(np.full(BLOCK, BOB, np.float32))

        task.heard = talk
        live[ANNA].feed(np.full(10 * BLOCK, ANNA, np.float32))
        for job in live.values():
            await ended(job)
        worker.stop()

    asyncio.run(scenario())
    assert task.order == [ANNA, BOB, *9 * [ANNA]]


class TimedToText(LoudToText):
    """A step of a batch takes `seconds[size]` of the clock `now_s`, but some take longer."""

    def __init__(self, seconds: dict[int, float]) -> None:
        super().__init__()
        self._seconds, self.now_s, self._steps = seconds, 0.0, 0

    @property
    def max_live(self) -> int:
        return max(self._seconds)

    def live_batch(self, slots: int) -> LiveBatch:
        task = self

        class Batch(SingleStreamBatch):
            has_room = True

            def step(self) -> dict[LiveStream, list[TranscriptDelta] | Exception]:
                task._steps += 1
                task.now_s += task._seconds[slots] * (9 if task._steps % 4 == 0 else 1)
                return {}

        return Batch(self.begin)


@pytest.mark.parametrize(
    ("seconds", "streams"),
    [
        ({1: 0.0011}, 58),
        ({1: 0.0213}, 3),  # three steps take 63.9 ms of the 64 ms
        ({1: 0.0214}, 2),
        ({1: 0.063}, 1),
        ({1: 0.065}, 1),  # at least one, though the machine cannot follow it
        ({1: 0.5}, 1),
        ({1: 0.015, 2: 0.02, 4: 0.03}, 8),  # two batches of four
        ({1: 0.015, 2: 0.02, 4: 0.065}, 6),  # three batches of two
        ({1: 0.007, 2: 0.02, 4: 0.06}, 9),  # batches do not help
    ],
)
def test_live_slots_are_those_whose_steps_fit_into_four_fifths_of_real_time(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], streams: int
) -> None:
    """The median of the steps counts, not the longest ones."""
    task, metrics = TimedToText(seconds), Metrics()
    clock = SimpleNamespace(perf_counter=lambda: task.now_s, monotonic=time.monotonic)
    monkeypatch.setattr(live_streams, "time", clock)
    worker = TranscriptionWorker("a", task, Limits(), metrics)
    assert worker.live_slots == streams
    assert metrics.registry.get_sample_value("voxport_slots", {"bundle": "a"}) == streams


def test_a_task_whose_steps_become_slower_has_one_live_slot() -> None:
    task = TimedToText({1: 0.0011})
    task.is_steady = False
    assert TranscriptionWorker("a", task, Limits(), Metrics()).live_slots == 1
