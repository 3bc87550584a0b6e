"""Sessions whose configuration changes between utterances."""

import asyncio
from typing import Any

import pytest
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.loud_to_text import FrenchToText, LoudToText
from support.serve.realtime_client import OPENAI, VLLM, Socket, pcm, talk, text_of
from support.serve.single_stream_batch import SingleStreamBatch

from voxport.runtime.speech_to_text import LiveStream

COMPLETED = "conversation.item.input_audio_transcription.completed"


def session(**transcription: object) -> dict[str, Any]:
    return {"type": "transcription", "audio": {"input": {"transcription": transcription}}}


async def utterance(socket: Socket) -> list[dict[str, Any]]:
    """The events of a whole utterance in OpenAI's dialect."""
    for block in pcm(24000):
        await socket.send("input_audio_buffer.append", audio=text_of(block))
    await socket.send("input_audio_buffer.commit")
    return await socket.until(COMPLETED)


def test_items_and_events_have_ids_of_their_own_after_an_update(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> list[dict[str, Any]]:
        events = [await socket.receive()]
        for _ in range(2):
            await socket.send("session.update", session=session(model="loud"))
            events += [await socket.receive(), *await utterance(socket)]
        return events

    events = talk(server, conversation, OPENAI)
    ids = [event["event_id"] for event in events]
    assert len(set(ids)) == len(ids), "the greeting included"
    committed = [event for event in events if event["type"] == "input_audio_buffer.committed"]
    assert len({event["item_id"] for event in committed}) == 2
    assert [event["previous_item_id"] for event in committed] == [None, committed[0]["item_id"]]


def test_fields_that_an_update_leaves_out_stay_and_null_resets_them(server: RunningServer) -> None:
    async def conversation(socket: Socket) -> Any:
        await socket.receive()
        found = []
        for fields in ({"language": "en", "delay": "xhigh"}, {}, {"delay": None}):
            await socket.send("session.update", session=session(**fields))
            transcription = (await socket.receive())["session"]["audio"]["input"]["transcription"]
            found.append((transcription["model"], transcription["language"], transcription["delay"]))
        return found

    expected = [("loud", "en", "xhigh")] * 2 + [("loud", "en", None)]
    assert talk(server, conversation, OPENAI) == expected


def test_a_model_without_the_language_of_the_session_is_refused_and_the_error_says_what_to_send() -> None:
    with running({"loud": LoudToText(), "french": FrenchToText()}) as server:

        async def conversation(socket: Socket) -> Any:
            await socket.receive()
            found = []
            for fields in (
                {"language": "en"},
                {"model": "french"},
                {"model": "french", "language": "en"},
                {},
                {"model": "french", "language": None},
                {"language": "fr"},
                {"model": "loud", "language": "en"},
            ):
                await socket.send("session.update", session=session(**fields))
                answer = await socket.receive()
                if answer["type"] == "error":
                    found.append((answer["error"]["param"].rpartition(".")[2], answer["error"]["message"]))
                else:
                    now = answer["session"]["audio"]["input"]["transcription"]
                    found.append((now["model"], now["language"]))
            return found

        found = talk(server, conversation, OPENAI)
    where = "session.audio.input.transcription.language: "
    earlier = "en, which an earlier update set, is no language of french; send fr or null with the model"
    assert found == [
        ("loud", "en"),
        ("language", where + earlier),
        ("language", where + "expected one of fr; the model detects which one it is"),
        ("loud", "en"),
        ("french", None),
        ("french", "fr"),
        ("loud", "en"),
    ]


@pytest.mark.parametrize("path", [OPENAI, f"{VLLM}?model=loud"])
def test_the_greeting_names_the_model_of_the_path(server: RunningServer, path: str) -> None:
    greeting = talk(server, Socket.receive, path)
    assert greeting["session"]["audio"]["input"]["transcription"]["model"] == "loud"


def test_the_model_cannot_change_before_the_text_of_an_utterance_is_sent() -> None:
    """With another model, the text would come from a worker that the session has left."""
    slow = LoudToText()
    with running({"slow": slow, "other": LoudToText()}) as server:
        worker = server.models.transcription_workers["slow"]

        async def conversation(socket: Socket) -> Any:
            await socket.receive()
            await socket.send("session.update", model="slow")
            for block in pcm():
                await socket.send("input_audio_buffer.append", audio=text_of(block))
            held = asyncio.Event()
            loop = asyncio.get_running_loop()
            slow.before_feed = lambda: asyncio.run_coroutine_threadsafe(held.wait(), loop).result(5)
            await socket.send("input_audio_buffer.commit", final=True)
            await socket.send("session.update", model="other")
            refused = await socket.until("error")
            slow.before_feed = lambda: None
            held.set()
            done = await socket.until("transcription.done")
            await socket.send("session.update", model="other")  # now it can
            await socket.send("input_audio_buffer.commit", final=True)
            return refused[-1]["code"], done[-1]["text"], (await socket.receive())["error"]

        code, text, error = talk(server, conversation, VLLM)
        assert (code, text) == ("session_busy", "one two three") and "no audio" in error
        wait_until(lambda: worker.is_idle)


def test_a_place_that_cannot_be_freed_ends_no_other_session(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = []

    def fail_once(batch: SingleStreamBatch, stream: LiveStream) -> None:
        freed.append(stream)
        if len(freed) == 1:
            raise RuntimeError("no memory")
        end(batch, stream)

    with running({"loud": LoudToText()}) as server:
        worker = server.models.transcription_workers["loud"]
        end = SingleStreamBatch.end
        monkeypatch.setattr(SingleStreamBatch, "end", fail_once)

        async def leave(socket: Socket) -> None:
            await socket.receive()
            for block in pcm(24000):
                await socket.send("input_audio_buffer.append", audio=text_of(block))
            await socket.until("conversation.item.input_audio_transcription.delta")

        talk(server, leave, OPENAI)
        wait_until(lambda: len(freed) == 1)

        async def transcribe(socket: Socket) -> str:
            await socket.receive()
            return str((await utterance(socket))[-1]["transcript"])

        assert talk(server, transcribe, OPENAI) == "one two three"
        assert worker.is_ready
