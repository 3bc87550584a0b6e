"""Limits of Wyoming connections, clients that leave, the end of the server, and its address."""

import asyncio

import pytest
from support.serve.wyoming_fixture import (
    END_OF_SPEECH,
    END_OF_TRANSCRIPT,
    TEXT,
    WAIT_S,
    WyomingFixture,
    ask,
    chunks,
    conversation,
    sound,
    spoken,
    tone,
    types,
    until_true,
    wyoming_fixture,
)
from wyoming.audio import AudioStart
from wyoming.client import AsyncClient
from wyoming.event import Event
from wyoming.ping import Ping
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
)

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.address import parse_wyoming
from voxport.runtime.serve.wyoming.server import WyomingServer


def test_a_client_that_leaves_cancels_its_speech() -> None:
    async def scenario(fixture: WyomingFixture) -> None:
        async with fixture.client():
            async with AsyncClient.from_uri(f"tcp://127.0.0.1:{fixture.port}") as leaving:
                fixture.engines_may_run.clear()
                await leaving.write_event(Synthesize("Some text.").event())
                await until_true(lambda: not fixture.speech_worker.is_idle)
            await until_true(lambda: all(job.is_cancelled for job in fixture.speech_worker._running.values()))
            fixture.engines_may_run.set()
            assert await until_true(lambda: fixture.speech_worker.is_idle) < 1

    with wyoming_fixture() as fixture:
        asyncio.run(scenario(fixture))
        assert fixture.speech_worker._pool.used == 0


def test_a_client_that_leaves_in_the_middle_of_a_text_or_audio_leaves_nothing() -> None:
    async def scenario(fixture: WyomingFixture) -> None:
        async with fixture.client():
            for request in (SynthesizeStart(), AudioStart(16000, 2, 1)):
                async with AsyncClient.from_uri(f"tcp://127.0.0.1:{fixture.port}") as leaving:
                    await leaving.write_event(request.event())
                    await leaving.write_event(SynthesizeChunk(TEXT[:20]).event())
                    await ask(leaving, Ping(), until=("pong",))
            await until_true(lambda: fixture.speech_worker.is_idle and fixture.transcription_worker.is_idle)

    with wyoming_fixture() as fixture:
        asyncio.run(scenario(fixture))  # would wait for the thread of the text


def test_audio_that_arrives_while_earlier_audio_waits_is_not_lost() -> None:
    async def scenario(fixture: WyomingFixture) -> list[Event]:
        async with fixture.client() as client:
            fixture.engines_may_run.clear()
            audio = chunks(tone("." * 40 + "x..xx."))
            reading = asyncio.ensure_future(ask(client, *audio, until=END_OF_TRANSCRIPT))
            await until_true(
                lambda: (
                    bool(fixture.transcription_worker._live) and fixture.transcription_worker._live[0].is_full
                )
            )
            await asyncio.sleep(0.1)
            fixture.engines_may_run.set()
            return await reading

    with wyoming_fixture(ahead_s=2) as fixture:
        assert asyncio.run(scenario(fixture))[-2].data == {"text": "one two three"}


def test_a_silent_client_is_closed() -> None:
    async def scenario(fixture: WyomingFixture) -> None:
        async with fixture.client() as client:
            (error,) = await ask(client, until=())
            assert error.data["code"] == "session_idle"
            assert await client.read_event() is None

    with wyoming_fixture(body_s=0.2) as fixture:
        asyncio.run(scenario(fixture))


def test_a_client_that_waits_for_speech_is_not_silent() -> None:
    async def scenario(fixture: WyomingFixture) -> list[Event]:
        async with fixture.client() as client:
            fixture.engines_may_run.clear()
            await client.write_event(Synthesize("Some text.").event())
            await asyncio.sleep(1.2)
            fixture.engines_may_run.set()
            return await ask(client, until=END_OF_SPEECH)

    with wyoming_fixture(body_s=0.2, silent_socket_s=0.2) as fixture:
        assert types(asyncio.run(scenario(fixture)))[-1] == "audio-stop"


def test_connections_are_counted() -> None:
    async def scenario(fixture: WyomingFixture) -> None:
        async with fixture.client() as client:
            await ask(client, Ping(), until=("pong",))
            async with AsyncClient.from_uri(f"tcp://127.0.0.1:{fixture.port}") as other:
                (error,) = await ask(other, until=())
                assert error.data["code"] == "server_is_overloaded"
            await ask(client, Ping(), until=("pong",))

    with wyoming_fixture(sockets=1) as fixture:
        asyncio.run(scenario(fixture))


def test_requests_of_a_connection_are_counted() -> None:
    with wyoming_fixture(jobs_per_key=3) as fixture:
        fixture.engines_may_run.clear()
        (found,) = conversation(fixture, *[Synthesize("Some text.")] * 4, until=())
    assert found[-1].data["code"] == "rate_limit_exceeded"


# The end of the server


def test_a_server_that_drains_finishes_speech_and_refuses_more() -> None:
    async def scenario(fixture: WyomingFixture) -> None:
        async with fixture.client() as client:
            fixture.engines_may_run.clear()
            await client.write_event(Synthesize(TEXT).event())
            await until_true(lambda: bool(fixture.speech_worker._running))
            draining = asyncio.ensure_future(asyncio.to_thread(fixture.models.drain, WAIT_S))
            await until_true(lambda: not fixture.speech_worker.is_ready)
            fixture.engines_may_run.set()
            assert sound(await ask(client, until=END_OF_SPEECH)) == spoken(TEXT)
            (error,) = await ask(client, until=())
            assert error.data["code"] == "server_shutting_down"
            await draining

    with wyoming_fixture() as fixture:
        asyncio.run(scenario(fixture))


def test_an_open_text_ends_with_an_error_when_the_server_closes() -> None:
    async def scenario(fixture: WyomingFixture) -> None:
        server = WyomingServer(fixture.models, "127.0.0.1", 0)
        async with server:
            client = AsyncClient.from_uri(f"tcp://127.0.0.1:{server.port}")
            await client.connect()
            await ask(client, SynthesizeStart(), Ping(), until=("pong",))
            reading = asyncio.ensure_future(ask(client, until=()))
        (error,) = await reading
        assert error.data["code"] == "server_shutting_down"
        await client.disconnect()

    with wyoming_fixture() as fixture:
        asyncio.run(scenario(fixture))


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        *(
            (uri, "no key")
            for uri in ("tcp://0.0.0.0:10200", "tcp://192.168.1.2:10200", "tcp://example.org:1")
        ),
        *((uri, "expected tcp://HOST:PORT") for uri in ("127.0.0.1:1", "unix:///a", "tcp://127.0.0.1", "")),
        ("tcp://127.0.0.1:x", "expected tcp://HOST:PORT"),
    ],
)
def test_an_address_is_one_of_this_machine(uri: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_wyoming(uri)
    assert parse_wyoming("tcp://127.0.0.1:10200") == ("127.0.0.1", 10200)
    assert parse_wyoming("tcp://[::1]:1") == ("::1", 1)
