"""The embedded speech-to-text bundle on a server: the runtime gives the same transcripts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from support.runtime.opened_tasks import open_recogniser
from support.serve.http_server import RunningServer, running
from support.serve.realtime_client import OPENAI, Socket, talk, text_of

from voxport.export.evaluation.sentences import HELD_OUT, Sentence, read_sentences
from voxport.runtime.audio.files import pcm16
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.opening import open_task
from voxport.runtime.speech_to_text import SpeechToText

RATE = 16000
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(trained_bundles: dict[str, Path]) -> Iterator[RunningServer]:
    task = open_task(SpeechToText, trained_bundles["voxtral_realtime"], EngineOptions(threads=1))
    with running({"loud": task}) as started:
        yield started


@pytest.fixture(scope="module")
def utterance() -> Sentence:
    """No model was trained on it."""
    return read_sentences(HELD_OUT, 1)[0]


@pytest.fixture(scope="module")
def text_alone(trained_bundles: dict[str, Path]) -> Callable[..., str]:
    """The text of samples float32 [n] at 16 kHz without a server."""
    task = open_recogniser(trained_bundles["voxtral_realtime"])

    def transcribe(samples: np.ndarray, live: bool) -> str:
        return "".join(delta.text for delta in task.transcribe([samples], live=live)).strip()

    return transcribe


def decoded_pcm(content: bytes) -> np.ndarray:
    """16-bit samples as the server decodes them."""
    return np.frombuffer(content, "<i2").astype(np.float32) / 2**15


def pieces(content: bytes, rate: int) -> list[str]:
    """Audio of messages, 100 ms each."""
    size = 2 * rate // 10
    return [text_of(content[start : start + size]) for start in range(0, len(content), size)]


def test_a_recording_has_the_text_that_the_runtime_gives(
    server: RunningServer, utterance: Sentence, text_alone: Callable[..., str]
) -> None:
    content = utterance.check_recording().read_bytes()
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    found = client.audio.transcriptions.create(model="loud", file=("talk.opus", content)).text
    assert found == text_alone(utterance.samples(RATE), live=False) == utterance.text


def test_a_socket_has_the_text_that_the_runtime_gives_live(
    server: RunningServer, utterance: Sentence, text_alone: Callable[..., str]
) -> None:
    content = pcm16(utterance.samples(RATE))

    async def conversation(socket: Socket) -> str:
        audio = {"format": {"type": "audio/pcm", "rate": RATE}}
        await socket.send("session.update", session={"audio": {"input": audio}})
        for piece in pieces(content, RATE):
            await socket.send("input_audio_buffer.append", audio=piece)
        await socket.send("input_audio_buffer.commit")
        messages = await socket.until("conversation.item.input_audio_transcription.completed")
        return str(messages[-1]["transcript"])

    assert talk(server, conversation, OPENAI) == text_alone(decoded_pcm(content), live=True) == utterance.text
