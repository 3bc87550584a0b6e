"""A text that arrives in pieces is one job: admitted once, and spoken part by part."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from queue import SimpleQueue

import pytest
from support.serve.http_server import wait_until
from support.serve.tone_speech import FRAME, ToneSpeech
from support.serve.wyoming_fixture import TEXT

from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.job import SpeechJob
from voxport.runtime.serve.speech.worker import SpeechWorker

BEGUN, REST = TEXT[:120], TEXT[120:]  # the first part of the text ends with its first sentence
PARTS = re.findall(r"[A-Z][^.]*\.", TEXT)
Add = Callable[[str | None], None]


@asynccontextmanager
async def arriving(task: ToneSpeech) -> AsyncIterator[tuple[Models, SpeechJob, Add]]:
    """A job whose first part is spoken already, and a function that adds a piece of its text."""
    models, threads, pieces = (
        Models({"a": task}, Limits(waiting=1), 1),
        ThreadPoolExecutor(1),
        SimpleQueue[str | None](),
    )
    models.start()
    wait_until(lambda: models.is_ready)
    worker = models.speech_workers["a"]
    pieces.put(BEGUN)
    prepared = await asyncio.to_thread(worker.prepare, iter(pieces.get, None), {}, threads)
    job = worker.submit(prepared)
    await asyncio.to_thread(wait_until, lambda: job.frames == len(PARTS[0]) and not worker._running)
    try:
        yield models, job, pieces.put
    finally:
        pieces.put(None)
        models.drain(0)
        threads.shutdown()


async def samples(job: SpeechJob) -> int:
    count = 0
    async with asyncio.timeout(10):
        while block := await job.read():
            count += len(block) // 2
    return count


async def asked(worker: SpeechWorker, text: str) -> SpeechJob:
    return worker.submit(await asyncio.to_thread(worker.prepare, text, {}))


def test_the_next_part_needs_no_place_in_a_full_queue_and_precedes_the_texts_that_wait() -> None:
    order: list[str] = []
    task = ToneSpeech(fault=lambda text, frame: order.append(text) if not frame else None)

    async def scenario() -> None:
        async with arriving(task) as (models, job, add):
            worker = models.speech_workers["a"]
            order.clear()
            task.gate.clear()
            runs = await asked(worker, "It runs.")
            await asyncio.to_thread(wait_until, lambda: len(worker._running) == 1)
            waits = await asked(worker, "It waits.")
            with pytest.raises(ApiError, match="wait"):
                worker.check_room()
            add(REST)
            add(None)
            await asyncio.to_thread(wait_until, lambda: job in worker._waiting_for_slot)
            task.gate.set()
            for each in (job, runs, waits):
                await samples(each)

    asyncio.run(scenario())
    assert order == ["It runs.", PARTS[1], PARTS[2], "It waits."]


def test_a_slot_is_free_while_the_text_arrives() -> None:
    async def scenario() -> None:
        async with arriving(ToneSpeech()) as (models, job, add):
            other = await asked(models.speech_workers["a"], "The other.")
            assert await samples(other) == FRAME * len("The other.")
            add(None)
            assert await samples(job) > FRAME * len(PARTS[0]) and job.status == "end"

    asyncio.run(scenario())


def test_a_text_that_is_cancelled_while_it_arrives_leaves_nothing() -> None:
    async def scenario() -> None:
        async with arriving(ToneSpeech()) as (models, job, add):
            worker = models.speech_workers["a"]
            job.cancel()
            await asyncio.to_thread(wait_until, lambda: worker.is_idle, 1)
            add(REST)
            add(None)
            await asyncio.sleep(0.1)
            assert worker.is_idle and worker._pool.used == 0

    asyncio.run(scenario())


def test_a_wrong_piece_ends_the_job_with_its_error() -> None:
    async def scenario() -> None:
        async with arriving(ToneSpeech()) as (models, job, add):
            add("\0")
            with pytest.raises(ApiError) as found:
                await samples(job)
            assert found.value.status == 400 and models.speech_workers["a"].is_idle

    asyncio.run(scenario())


def test_a_server_that_shuts_down_speaks_the_rest_of_a_text_that_arrives() -> None:
    async def scenario() -> None:
        async with arriving(ToneSpeech()) as (models, job, add):
            draining = asyncio.create_task(asyncio.to_thread(models.drain, 10))
            await asyncio.to_thread(wait_until, lambda: not models.is_ready)
            await asyncio.sleep(0.2)
            add(REST)
            add(None)
            assert await samples(job) > FRAME * sum(map(len, PARTS))
            await draining

    asyncio.run(scenario())
