"""Text that arrives in pieces over a socket, as vLLM-Omni and Mistral speak it."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import mistralai.client
import numpy as np
import pytest
from mistralai.client.models import SpeechStreamAudioDelta, SpeechStreamDone
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.realtime_client import Socket, talk
from support.serve.tone_speech import FRAME, RATE, ToneSpeech, tone
from websockets.exceptions import ConnectionClosed

from voxport.runtime.audio.files import pcm16
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.speech.job import ArrivingText

OMNI, MISTRAL = "/v1/audio/speech/stream", "/v1/audio/speech/realtime?model=tone"
FIRST = "The first sentence of this text is long enough to be spoken without the next one."
SECOND = "The second sentence follows the first one, and it is long enough to be spoken alone."
PAUSE = bytes(2 * RATE // 5)  # 0.2 s
PCM = {"response_format": "pcm"}
Message = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running({"other": ToneSpeech(), "tone": ToneSpeech()}, Limits(text_characters=1000)) as started:
        yield started


async def omni_answers(socket: Socket) -> list[Message | bytes]:
    """Messages up to the end of a text."""
    found: list[Message | bytes] = []
    while not (found and isinstance(found[-1], dict) and found[-1]["type"] == "session.done"):
        message = await asyncio.wait_for(socket.socket.recv(), 5)
        found.append(message if isinstance(message, bytes) else json.loads(message))
    return found


def omni(server: RunningServer, *pieces: str, **config: object) -> list[Message | bytes]:
    async def speak(socket: Socket) -> list[Message | bytes]:
        if config:
            await socket.send("session.config", **{"model": "tone", **config})
        for piece in pieces:
            await socket.send("input.text", text=piece)
        await socket.send("input.done")
        return await omni_answers(socket)

    return talk(server, speak, OMNI)


def sound(messages: list[Message | bytes]) -> bytes:
    return b"".join(message for message in messages if isinstance(message, bytes))


def events(messages: list[Message | bytes]) -> list[Message]:
    return [message for message in messages if isinstance(message, dict)]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_each_part_of_a_text_is_a_file(server: RunningServer, is_streamed: bool) -> None:
    text = f"{FIRST} {SECOND}"
    pieces = (text[start : start + 7] for start in range(0, len(text), 7))
    answers = omni(server, *pieces, voice="bob", stream_audio=is_streamed, **PCM)
    assert sound(answers) == pcm16(tone(FIRST, "bob")) + PAUSE + pcm16(tone(SECOND, "bob"))
    assert (sum(isinstance(each, bytes) for each in answers) == 2) != is_streamed
    starts = [each for each in events(answers) if each["type"] == "audio.start"]
    assert [each["sentence_text"] for each in starts] == [FIRST, SECOND]
    assert starts[0]["sample_rate"] == RATE and starts[0]["format"] == "pcm"
    sizes = [each["total_bytes"] for each in events(answers) if each["type"] == "audio.done"]
    assert sizes == [2 * FRAME * len(FIRST), len(PAUSE) + 2 * FRAME * len(SECOND)]
    done = {"type": "session.done", "utterance_index": 0, "total_sentences": 2}
    assert answers[-1] == done | {"seed": 0, "voice": "bob"}


def test_pcm_of_a_model_of_48_khz_has_24_khz() -> None:
    with running({"tone": ToneSpeech(rate=48_000)}) as server:
        start, part, done, _ = omni(server, FIRST, **PCM)
    assert isinstance(start, dict) and isinstance(done, dict)
    assert start["sample_rate"] == RATE and done["total_bytes"] == len(part) == 2 * FRAME * len(FIRST)


def test_a_part_is_spoken_before_the_next_one_arrives(server: RunningServer) -> None:
    async def speak(socket: Socket) -> list[str]:
        await socket.send("session.config", model="tone", **PCM)
        await socket.send("input.text", text=f"{FIRST} The second ")
        kinds = [(await socket.receive())["type"]]
        assert len(await socket.socket.recv()) == 2 * FRAME * len(FIRST)
        return [*kinds, (await socket.receive())["type"]]

    assert talk(server, speak, OMNI) == ["audio.start", "audio.done"]


def test_without_settings_the_first_bundle_speaks_a_file(server: RunningServer) -> None:
    content = sound(omni(server, "Hello."))
    assert content[:4] == b"RIFF" and content[44:] == pcm16(tone("Hello."))


def test_a_socket_speaks_several_texts_and_settings_change_between_them(server: RunningServer) -> None:
    async def speak(socket: Socket) -> list[list[Message | bytes]]:
        found = []
        for voice in ("anna", "bob"):
            await socket.send("session.config", model="tone", voice=voice, **PCM)
            await socket.send("input.text", text="Hello.")
            await socket.send("input.done")
        for _ in range(2):
            found.append(await omni_answers(socket))
        await socket.send("session.close")
        with pytest.raises(ConnectionClosed):
            await socket.receive()
        return found

    first, second = talk(server, speak, OMNI)
    assert sound(first) == pcm16(tone("Hello.")) and sound(second) == pcm16(tone("Hello.", "bob"))
    assert events(second)[-1]["utterance_index"] == 1


def test_settings_do_not_change_in_the_middle_of_a_text(server: RunningServer) -> None:
    async def speak(socket: Socket) -> list[Message | bytes]:
        await socket.send("session.config", model="tone", **PCM)
        await socket.send("input.text", text="Hello.")
        await socket.send("session.config", model="tone", voice="bob", **PCM)
        await socket.send("input.done")
        return await omni_answers(socket)

    answers = talk(server, speak, OMNI)
    assert events(answers)[0]["code"] == "session_busy" and sound(answers) == pcm16(tone("Hello."))


@pytest.mark.parametrize("text", ["", " ", "\U0001f44d", "---"])
def test_a_text_without_a_word_is_silence(server: RunningServer, text: str) -> None:
    assert sound(omni(server, text, **PCM)) == bytes(2 * FRAME)


def test_fields_without_effect_are_named_and_speed_has_one(server: RunningServer) -> None:
    answers = omni(server, "Hello.", task_type="CustomVoice", speed=2, **PCM)
    assert events(answers)[-1]["ignored"] == ["task_type"]
    assert len(sound(answers)) == FRAME * len("Hello.")


@pytest.mark.parametrize(
    "config, text, reason",
    [
        ({"voice": "x"}, "Hello.", "voice: expected"),
        ({"word_timestamps": True}, "Hello.", "word_timestamps"),
        ({"speed": 9}, "Hello.", "speed"),
        ({"voice": "bob"}, "a\0b", "NUL"),
        ({"voice": "bob"}, "Привет", "script"),
    ],
)
def test_an_error_is_named_and_the_next_text_is_spoken(
    server: RunningServer, config: Message, text: str, reason: str
) -> None:
    async def speak(socket: Socket) -> tuple[list[Message], bytes]:
        await socket.send("session.config", model="tone", **PCM, **config)
        await socket.send("input.text", text=text)
        for _ in range(2):  # more than may wait
            await socket.send("input.text", text=text * 400)
        await socket.send("input.done")
        found = events(await omni_answers(socket))
        await socket.send("session.config", model="tone", **PCM)
        await socket.send("input.text", text="Hello.")
        await socket.send("input.done")
        return found, sound(await omni_answers(socket))

    found, content = talk(server, speak, OMNI)
    assert all(each["type"] == "error" and reason in each["message"] for each in found[:-1])
    assert 1 <= len(found[:-1]) <= 2 and found[-1]["total_sentences"] == 0
    assert content == pcm16(tone("Hello."))


@pytest.mark.parametrize("message", ["x", "[]", b"x", {"type": "other"}, {"type": "input.text", "text": 5}])
def test_a_wrong_message_leaves_the_socket_open(server: RunningServer, message: Any) -> None:
    async def speak(socket: Socket) -> tuple[Message, bytes]:
        await socket.post(message)
        error = await socket.receive()
        await socket.send("input.text", text="Hello.")
        await socket.send("input.done")
        return error, sound(await omni_answers(socket))

    error, content = talk(server, speak, OMNI)
    assert error["type"] == "error" and content[44:] == pcm16(tone("Hello."))


def test_a_text_has_no_limit_and_waits_for_its_speech() -> None:
    """The client sends 8 times as much as may wait, and nothing is spoken at first."""
    task, limits = ToneSpeech(), Limits(text_characters=1000)
    task.gate.clear()
    text = f"{FIRST} " * 100
    with running({"tone": task}, limits) as server:

        async def speak(socket: Socket) -> bytes:
            await socket.send("session.config", model="tone", stream_audio=True, **PCM)

            async def send() -> None:
                for start in range(0, len(text), 500):
                    await socket.send("input.text", text=text[start : start + 500])
                await socket.send("input.done")

            sending = asyncio.create_task(send())
            await asyncio.sleep(0.3)
            task.gate.set()
            content = sound(await omni_answers(socket))
            await sending
            return content

        assert len(talk(server, speak, OMNI)) > 2 * FRAME * 100 * len(FIRST)


def test_a_piece_waits_while_too_much_of_the_text_waits() -> None:
    async def scenario() -> None:
        text = ArrivingText(10)
        await text.add("0123456789")
        adding = asyncio.create_task(text.add("more"))
        await asyncio.sleep(0.05)
        assert not adding.done()
        assert await asyncio.to_thread(next, iter(text)) == "0123456789"
        await asyncio.wait_for(adding, 1)

    async def ended() -> None:
        text = ArrivingText(1)
        adding = asyncio.create_task(text.add("much"))
        await asyncio.sleep(0.01)
        text.finish()
        await asyncio.wait_for(adding, 1)
        await asyncio.wait_for(text.add("more"), 1)
        assert list(text) == ["much"]

    asyncio.run(scenario())
    asyncio.run(ended())


@pytest.mark.parametrize("path", [OMNI, MISTRAL])
def test_a_client_that_leaves_in_the_middle_of_a_text_leaves_nothing(
    server: RunningServer, path: str
) -> None:
    async def leave(socket: Socket) -> None:
        await socket.post({"type": "input.text" if path == OMNI else "input_text.append", "text": FIRST})
        await asyncio.sleep(0.1)

    talk(server, leave, path)
    wait_until(lambda: all(worker.is_idle for worker in server.models.workers), 2)


# Mistral's dialect, with its own client


def speak_stream(server: RunningServer, *pieces: str, **options: Any) -> list[Any]:
    async def arriving() -> AsyncIterator[str]:
        for piece in pieces:
            yield piece

    async def run() -> list[Any]:
        client = mistralai.client.Mistral(server_url=server.url)
        speech = client.audio.realtime_speech.speak_stream(arriving(), "tone", **options)
        return [event async for event in speech]

    return asyncio.run(run())


def test_the_client_of_mistral_speaks_pieces(server: RunningServer) -> None:
    found = speak_stream(server, FIRST[:9], FIRST[9:], voice_id="bob", response_format="pcm")
    content = b"".join(
        base64.b64decode(each.audio_data) for each in found if isinstance(each, SpeechStreamAudioDelta)
    )
    np.testing.assert_allclose(np.frombuffer(content, "<f4"), tone(FIRST, "bob"), atol=1e-4)
    assert isinstance(found[-1], SpeechStreamDone) and found[-1].usage.prompt_tokens == len(FIRST)


def test_the_client_of_mistral_speaks_without_settings(server: RunningServer) -> None:
    *_, last, done = speak_stream(server, "Hello.")
    assert isinstance(last, SpeechStreamAudioDelta) and isinstance(done, SpeechStreamDone)


def test_a_flush_ends_a_text_and_not_the_session(server: RunningServer) -> None:
    async def speak() -> tuple[list[str | None], Message]:
        client = mistralai.client.Mistral(server_url=server.url)
        connection = await client.audio.realtime_speech.connect(
            "tone", voice_id="bob", expressiveness=1.5, timeout_ms=5000
        )
        async with connection:
            await connection.flush("Hello.")
            await connection.send_text("Bye.")
            await connection.flush()
            await connection.end()
            kinds = [event.type async for event in connection]
        return kinds, connection.session.model_dump()

    kinds, session = asyncio.run(speak())
    assert kinds.count("speech.audio.done") == 2 and kinds[-1] == "speech.audio.done"
    assert (session["voice"], session["model"]) == ("bob", "tone")


def test_the_client_of_mistral_reads_errors(server: RunningServer) -> None:
    *_, last = speak_stream(server, "Hello.", voice_id="x")
    assert last.type == "error" and "voice: expected" in last.error.message


def test_an_unknown_model_is_refused_before_the_socket_opens(server: RunningServer) -> None:
    with pytest.raises(Exception, match="404"):
        talk(server, Socket.receive, "/v1/audio/speech/realtime?model=x")
