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
from wyoming.info import Describe
from wyoming.ping import Ping
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
)
from zeroconf import ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.address import parse_networks, parse_wyoming
from voxport.runtime.serve.wyoming.server import SERVICE, WyomingServer


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


# Networks


@pytest.mark.parametrize("uri", ["127.0.0.1:1", "unix:///a", "tcp://127.0.0.1", "", "tcp://127.0.0.1:x"])
def test_an_address_has_a_host_and_a_port(uri: str) -> None:
    with pytest.raises(UsageError, match="expected tcp://HOST:PORT"):
        parse_wyoming(uri)
    assert parse_wyoming("tcp://0.0.0.0:10200") == ("0.0.0.0", 10200)
    assert parse_wyoming("tcp://[::1]:1") == ("::1", 1)


def test_clients_of_other_networks_are_refused_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """This machine may always connect, here by another of its addresses."""

    async def scenario(fixture: WyomingFixture) -> None:
        async with WyomingServer(fixture.models, "0.0.0.0", 0, parse_networks(["10.1.0.0/16"])) as server:
            async with AsyncClient.from_uri(f"tcp://127.0.0.2:{server.port}") as client:
                assert types(await ask(client, Describe(), until=("info",))) == ["info"]
            server._networks = tuple(parse_networks(["10.1.0.0/16"]))
            async with AsyncClient.from_uri(f"tcp://127.0.0.2:{server.port}") as client:
                assert await client.read_event() is None

    with wyoming_fixture() as fixture, caplog.at_level("WARNING"):
        asyncio.run(scenario(fixture))
    assert "127.0.0.1 is in no network of --wyoming-allow" in caplog.text


def test_an_announced_server_is_found() -> None:
    """By multicast, on the loopback interface alone."""
    found: list[str] = []

    def add(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        found.append(name) if state_change is ServiceStateChange.Added else found.remove(name)

    async def scenario(fixture: WyomingFixture) -> None:
        async with AsyncZeroconf(interfaces=["127.0.0.1"]) as network:
            AsyncServiceBrowser(network.zeroconf, SERVICE, handlers=[add])
            async with WyomingServer(fixture.models, "127.0.0.1", 0, announces=True) as server:
                await until_true(lambda: bool(found))
                info = AsyncServiceInfo(SERVICE, found[0])
                assert await info.async_request(network.zeroconf, 3000)
                assert info.parsed_addresses() == ["127.0.0.1"] and info.port == server.port
            await until_true(lambda: not found)

    with wyoming_fixture() as fixture:
        asyncio.run(scenario(fixture))
