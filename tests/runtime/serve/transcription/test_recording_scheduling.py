"""Recordings of several keys share the engine of a bundle."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import numpy as np
from support.serve.http_server import DEFAULT, wait_until
from support.serve.loud_to_text import BLOCK, LoudToText, LoudWords

from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.transcription.job import TranscriptionJob
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.speech_to_text import TranscriptDelta

PART, WORDS = np.ones(10 * BLOCK, np.float32), 10  # a turn of a recording, and its words
PARTS = 10


class Turns(LoudToText):
    """Has the transcription of each turn in order."""

    def __init__(self) -> None:
        super().__init__(is_live=False)
        self.turns: list[LoudWords] = []

    def begin(self, *arguments: object, **options: object) -> LoudWords:
        return TurnWords(self)


class TurnWords(LoudWords):
    _task: Turns

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        self._task.turns.append(self)
        return super().feed(samples)


@asynccontextmanager
async def started(task: LoudToText, limits: Limits = DEFAULT) -> AsyncIterator[TranscriptionWorker]:
    worker = TranscriptionWorker("a", task, limits, Metrics())
    worker.start()
    wait_until(lambda: worker.is_ready)
    try:
        yield worker
    finally:
        worker.stop()


def fill(job: TranscriptionJob, parts: int = 1) -> None:
    """Gives a recording the rest of its audio."""
    for _ in range(parts):
        job.feed(PART)
    job.finish()


async def take_turn(job: TranscriptionJob) -> None:
    """Returns after a turn of a recording, which more audio is to follow."""
    job.feed(PART)
    async with asyncio.timeout(5):
        for _ in range(WORDS):
            await job.read()


async def ended(job: TranscriptionJob) -> bool:
    """Waits for the whole text for some time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            while await job.read() is not None:
                pass
            return True
    return False


def test_recordings_of_one_key_leave_a_place_for_other_keys() -> None:
    async def scenario() -> None:
        async with started(LoudToText(is_live=False)) as worker:
            first, *more = [worker.submit("anna", None) for _ in range(5)]
            for job in more[:2]:
                await take_turn(job)
            await take_turn(first)  # all that may start have started
            bob = worker.submit("bob", None)
            fill(bob)
            assert await ended(bob)

    asyncio.run(scenario())


def test_the_last_free_place_is_for_a_key_without_recordings() -> None:
    """All places are taken when cleo comes, and a recording of anna is before hers in the queue."""

    async def scenario() -> None:
        async with started(LoudToText(is_live=False)) as worker:
            first, *others = [worker.submit("anna", None) for _ in range(3)]
            for job in others:
                await take_turn(job)
            await take_turn(worker.submit("bob", None))
            worker.submit("anna", None)
            cleo = worker.submit("cleo", None)
            fill(cleo)
            fill(first)
            assert await ended(cleo)

    asyncio.run(scenario())


def test_a_key_that_comes_last_does_not_wait_for_the_second_recordings_of_the_others() -> None:
    """All four places are taken, each key has a second recording in the queue, and then eve comes."""

    async def scenario() -> None:
        async with started(LoudToText(is_live=False)) as worker:
            jobs = [worker.submit(key, None) for key in ("anna", "bob", "cleo", "dan")]
            for job in jobs:
                await take_turn(job)
            for key in ("anna", "bob", "cleo", "dan"):
                worker.submit(key, None)
            eve = worker.submit("eve", None)
            fill(eve)
            fill(jobs[2])
            assert await ended(eve)

    asyncio.run(scenario())


def test_recordings_of_one_key_are_transcribed_in_the_order_of_their_arrival() -> None:
    task = Turns()

    async def scenario() -> None:
        async with started(task) as worker:
            jobs = [worker.submit("anna", None) for _ in range(8)]
            for job in jobs:
                fill(job)
            assert all([await ended(job) for job in jobs])
            words = [job.transcription for job in jobs]
            assert words == [each for each in dict.fromkeys(task.turns) if each in words]

    asyncio.run(scenario())


def test_one_key_leaves_places_of_the_queue_to_others() -> None:
    """Three recordings of anna are started. Of four places in the queue, two are for each key."""

    async def scenario() -> None:
        async with started(LoudToText(is_live=False), Limits(waiting=4)) as worker:
            for _ in range(3):
                await take_turn(worker.submit("anna", None))
            await take_turn(worker.submit("bob", None))
            accepted = {"anna": 0, "bob": 0}
            for key in ("anna", "anna", "anna", "bob", "bob", "bob"):
                with suppress(ApiError):
                    worker.submit(key, None)
                    accepted[key] += 1
            assert accepted == {"anna": 2, "bob": 2}

    asyncio.run(scenario())


def test_keys_take_turns_however_many_recordings_they_have() -> None:
    task, gate = Turns(), threading.Event()

    async def scenario() -> str:
        async with started(task) as worker:
            task.before_feed = lambda: gate.wait(10) and None
            jobs = [worker.submit(key, None) for key in ("anna", "anna", "anna", "bob")]
            for job in jobs:
                fill(job, PARTS)
            gate.set()
            assert all([await ended(job) for job in jobs])
            keys = {job.transcription: job.key for job in jobs}
            return "".join(keys[words][0] for words in task.turns if words in keys)

    order = asyncio.run(scenario()).removeprefix("a")  # the first turn may begin before bob comes
    assert "abababababab" in order[:14], order
