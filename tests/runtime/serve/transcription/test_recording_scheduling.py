"""Recordings share the engine of a bundle: first come, first served, and in turns once they have started."""

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
from support.serve.http_server import wait_until
from support.serve.loud_to_text import BLOCK, LoudToText, LoudWords

from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.transcription.job import TranscriptionJob
from voxport.runtime.serve.transcription.worker import MAX_RECORDINGS, TranscriptionWorker
from voxport.runtime.speech_to_text import TranscriptDelta

TURN, TURNS = np.ones(10 * BLOCK, np.float32), 5  # of a recording


class TurnsToText(LoudToText):
    """Has the transcription of each turn in order."""

    def __init__(self) -> None:
        super().__init__(is_live=False)
        self.turns: list[LoudWords] = []

    def begin(self, *arguments: object, **options: object) -> LoudWords:
        return TurnWords(self)


class TurnWords(LoudWords):
    _task: TurnsToText

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        self._task.turns.append(self)
        return super().feed(samples)


async def ended(job: TranscriptionJob) -> None:
    async with asyncio.timeout(10):
        while await job.read() is not None:
            pass


def test_recordings_take_turns_and_the_others_wait_in_the_order_of_their_arrival() -> None:
    task, gate = TurnsToText(), threading.Event()

    async def scenario() -> list[int]:
        worker = TranscriptionWorker("a", task, Limits(), Metrics())
        worker.start()
        wait_until(lambda: worker.is_ready)
        task.before_feed = lambda: gate.wait(10) and None
        jobs = [worker.submit() for _ in range(2 * MAX_RECORDINGS)]
        wait_until(lambda: len(worker._recordings) == MAX_RECORDINGS)
        for job in jobs:
            for _ in range(TURNS):
                job.feed(TURN)
            job.finish()
        gate.set()
        for job in jobs:
            await ended(job)
        worker.stop()
        numbers = {job.transcription: number for number, job in enumerate(jobs)}
        return [numbers[words] for words in task.turns if words in numbers]

    order = asyncio.run(scenario())
    first, second = list(range(MAX_RECORDINGS)), list(range(MAX_RECORDINGS, 2 * MAX_RECORDINGS))
    assert list(dict.fromkeys(order)) == first + second
    assert order[: 3 * MAX_RECORDINGS] == 3 * first
