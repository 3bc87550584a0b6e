"""Recordings share the engine of a bundle: first come, first served, and in turns once they have started."""

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from support.serve.http_server import wait_until
from support.serve.loud_to_text import BLOCK, LoudToText, LoudWords

from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.transcription import worker as worker_module
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


class ManyTexts(LoudWords):
    """Finds many texts at once, in a step of the sound or after its end."""

    _task: "ManyTextsToText"

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        is_now = len(samples) and not self._task.at_end
        return self._many() if is_now else super().feed(samples)

    def finish(self) -> Iterator[TranscriptDelta]:
        return self._many() if self._task.at_end else iter(())

    def _many(self) -> Iterator[TranscriptDelta]:
        for number in range(TURNS):
            self._task.turns.append(self)
            yield TranscriptDelta(f" {number}", [])


class ManyTextsToText(TurnsToText):
    at_end: bool

    def begin(self, *arguments: object, **options: object) -> LoudWords:
        return ManyTexts(self)


@pytest.mark.parametrize("at_end", [True, False])
def test_many_texts_of_one_step_are_given_out_in_turns(monkeypatch: pytest.MonkeyPatch, at_end: bool) -> None:
    monkeypatch.setattr(worker_module, "RECORDING_TURN_S", -1.0)
    task = ManyTextsToText()
    task.at_end = at_end

    async def scenario() -> list[str]:
        worker = TranscriptionWorker("a", task, Limits(), Metrics())
        worker.start()
        wait_until(lambda: worker.is_ready)
        task.turns.clear()
        gate = threading.Event()
        task.before_feed = lambda: gate.wait(10) and None
        jobs = [worker.submit() for _ in range(2)]
        wait_until(lambda: len(worker._recordings) == len(jobs))
        for job in jobs:
            job.feed(TURN)
            job.finish()
        gate.set()
        for job in jobs:
            await ended(job)
        worker.stop()
        numbers = {job.transcription: str(number) for number, job in enumerate(jobs)}
        return [job.text for job in jobs] + ["".join(numbers[words] for words in task.turns)]

    *texts, order = asyncio.run(scenario())
    assert all(text.endswith("0 1 2 3 4") for text in texts)
    assert order == "01" * TURNS
