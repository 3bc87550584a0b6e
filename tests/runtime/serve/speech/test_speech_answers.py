"""Answers with speech: events, speed, a drawn seed, silence for a text without a word, Mistral's client."""

import base64
import json
from typing import Any

import mistralai.client
import numpy as np
import pytest
from support.serve.http_server import RunningServer
from support.serve.speech_requests import TEXT, post_speech, speech_body
from support.serve.tone_speech import FRAME, RATE, tone

from voxport.runtime.audio.files import pcm16
from voxport.runtime.serve.fields import SpeechBody
from voxport.runtime.serve.speech.api import is_of_mistral

WORDLESS_BYTES = 2 * FRAME  # 80 ms


def events(server: RunningServer, **fields: object) -> list[dict[str, Any]]:
    text = post_speech(server, speech_body(stream_format="sse", **fields)).text
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data")]


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_events_have_the_bytes_of_the_file(server: RunningServer, name: str) -> None:
    *deltas, done = events(server, response_format=name, speed=1.25)
    content = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert content == post_speech(server, speech_body(response_format=name, speed=1.25)).content
    assert len(deltas) > 1 or name == "flac"
    assert done["type"] == "speech.audio.done" and done["ended"] == "end"


@pytest.mark.parametrize("speed", [0.25, 0.7, 1.25, 4])
def test_speed_changes_the_time_and_not_the_pitch(server: RunningServer, speed: float) -> None:
    samples = np.frombuffer(post_speech(server, speech_body(speed=speed)).content, "<i2")
    assert len(samples) == round(len(tone(TEXT)) / speed)
    loudest = np.argmax(np.abs(np.fft.rfft(samples))) * RATE / len(samples)
    assert abs(loudest - 440) < 3


def test_speed_1_changes_no_sample(server: RunningServer) -> None:
    assert post_speech(server, speech_body(speed=1.0)).content == pcm16(tone(TEXT))


def test_a_negative_seed_is_drawn_and_named(server: RunningServer) -> None:
    drawn = {int(post_speech(server, speech_body(seed=-1)).headers["x-voxport-seed"]) for _ in range(3)}
    assert len(drawn) == 3 and min(drawn) >= 0
    assert post_speech(server, speech_body(seed=7)).headers["x-voxport-seed"] == "7"
    assert events(server, seed=-5)[-1]["seed"] >= 0


@pytest.mark.parametrize(
    "text", ["---", "\U0001f44d", "...", " \n", "()[]{}", "```\nx\n```", "<think>Да</think>"]
)
def test_a_text_without_a_word_is_silence(server: RunningServer, text: str) -> None:
    answer = post_speech(server, speech_body(input=text))
    assert answer.content == bytes(WORDLESS_BYTES) and answer.headers["x-voxport-silence"] == "no words"
    assert "x-voxport-silence" not in post_speech(server, speech_body()).headers


def test_the_pause_of_a_text_without_a_word_is_kept(server: RunningServer) -> None:
    assert post_speech(server, speech_body(input="[pause:1s]")).content == bytes(2 * RATE)


@pytest.fixture
def mistral(server: RunningServer) -> mistralai.client.Mistral:
    return mistralai.client.Mistral(server_url=server.url)


def test_the_client_of_mistral_gets_json(mistral: mistralai.client.Mistral) -> None:
    answer = mistral.audio.speech.complete(input=TEXT, response_format="wav")
    assert base64.b64decode(answer.audio_data)[44:] == pcm16(tone(TEXT))


def test_the_client_of_mistral_gets_events_and_float_samples(mistral: mistralai.client.Mistral) -> None:
    answer = mistral.audio.speech.complete(
        model="tone", input=TEXT, voice_id="bob", response_format="pcm", stream=True
    )
    *deltas, done = answer
    content = b"".join(base64.b64decode(delta.data.audio_data) for delta in deltas)
    np.testing.assert_allclose(np.frombuffer(content, "<f4"), tone(TEXT, "bob"), atol=1e-4)
    assert len(deltas) > 1 and done.event == "speech.audio.done"
    assert done.data.usage.total_tokens == 2 * len(TEXT)


MARKS = [
    ({"voice_id": "bob"}, "*/*", True),
    ({"ref_audio": "UklGRg=="}, "*/*", True),
    ({}, "application/json;q=1, text/event-stream;q=0", True),
    ({"model": "voxtral-mini-tts-2603", "stream": False}, "*/*", True),
    ({"model": "voxtral-mini-tts-2603"}, "*/*", False),
    ({"model": "tone", "stream": False}, "*/*", False),
    ({"voice": "bob"}, "application/json", False),
    ({"stream_format": "sse"}, "text/event-stream", False),
    ({"voice": "bob", "voice_id": "bob"}, "*/*", False),
    ({"ref_audio": "data:audio/wav;base64,UklGRg=="}, "*/*", False),
    ({}, "application/json, text/plain, */*", False),
    ({}, "audio/mpeg", False),
]


@pytest.mark.parametrize("fields, accept, is_mistral", MARKS)
def test_the_marks_of_a_client_of_mistral(fields: dict[str, Any], accept: str, is_mistral: bool) -> None:
    assert is_of_mistral(SpeechBody(input=TEXT, **fields), {"accept": accept}) == is_mistral
