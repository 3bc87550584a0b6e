"""POST /v1/audio/speech, used by the OpenAI client and by plain HTTP."""

import io
from collections.abc import Iterator
from typing import Any

import av
import httpx2
import numpy as np
import openai
import pytest
from support.serve.http_server import RunningServer, running, wait_until
from support.serve.speech_requests import TEXT, post_in_order, post_speech, speech_body
from support.serve.tone_speech import FRAME, RATE, VOICES, ToneSpeech, tone

from voxport.runtime.audio.files import pcm16
from voxport.runtime.serve.limits import Limits


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running({"tone": ToneSpeech()}) as started:
        yield started


def decoded(content: bytes) -> tuple[np.ndarray, int]:
    """Samples [n] and their rate, by another decoder than the one of the server's formats."""
    with av.open(io.BytesIO(content), "r") as file:
        frames = list(file.decode(audio=0))
    samples = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    return samples / 32768 if samples.dtype == np.int16 else samples, frames[0].sample_rate


def speak(client: openai.OpenAI, **fields: Any) -> bytes:
    return client.audio.speech.create(**{"model": "tone", "voice": "anna", "input": TEXT, **fields}).content


def test_pcm_is_the_speech_of_the_voice(client: openai.OpenAI) -> None:
    assert speak(client, response_format="pcm") == pcm16(tone(TEXT))
    assert speak(client, response_format="pcm", voice="bob") == pcm16(tone(TEXT, "bob"))


def test_empty_instructions_are_none(client: openai.OpenAI) -> None:
    assert speak(client, response_format="pcm", instructions="") == pcm16(tone(TEXT))


BARS = {"wav": 1e-4, "flac": 1e-4, "mp3": 0.05, "opus": 0.1, "OGG": 0.1, "aac": 0.05}


@pytest.mark.parametrize("name, bar", BARS.items())
def test_files_hold_the_whole_speech(client: openai.OpenAI, name: str, bar: float) -> None:
    """Lossy formats keep the level of a tone. MP3 and AAC add up to two of their frames of silence."""
    content = speak(client, response_format=name)
    samples, rate = decoded(content)
    expected = tone(TEXT)
    assert rate == (48000 if name in ("opus", "OGG") else RATE)
    samples = samples[:: rate // RATE]
    assert len(expected) <= len(samples) <= len(expected) + (2500 if name in ("mp3", "aac") else 0)
    level = np.sqrt((samples**2).sum() / len(expected))
    assert abs(level - np.sqrt((expected**2).mean())) < bar


@pytest.fixture(scope="module")
def server_48_khz() -> Iterator[RunningServer]:
    with running({"tone": ToneSpeech(rate=48_000)}) as started:
        yield started


@pytest.mark.parametrize(
    "name, rate, fields",
    [
        ("pcm", 24_000, {}),
        ("PCM", 24_000, {"speed": 2}),
        ("pcm", 16_000, {"sample_rate": 16_000}),
        ("pcm", 48_000, {"sample_rate": 48_000}),
        ("wav", 48_000, {}),
        ("mp3", 48_000, {}),
    ],
)
def test_pcm_has_24_khz_or_the_rate_of_the_request_and_files_that_of_the_model(
    server_48_khz: RunningServer, name: str, rate: int, fields: dict[str, Any]
) -> None:
    content = post_speech(server_48_khz, speech_body(response_format=name, **fields)).content
    samples, found = (np.frombuffer(content, "<i2"), rate) if name in ("pcm", "PCM") else decoded(content)
    expected = len(tone(TEXT)) / RATE / fields.get("speed", 1)
    assert found == rate and expected <= len(samples) / rate <= expected + (0.1 if name == "mp3" else 0.0)
    loudest = np.argmax(np.abs(np.fft.rfft(samples))) * rate / len(samples)
    assert loudest == pytest.approx(VOICES["anna"], abs=2)


def test_mp3_is_the_default_and_types_are_named(server: RunningServer) -> None:
    for name, kind in {
        "mp3": "audio/mpeg",
        "wav": "audio/wav",
        "opus": "audio/ogg",
        "flac": "audio/flac",
        "AAC": "audio/aac",
    }.items():
        assert post_speech(server, speech_body(response_format=name)).headers["content-type"] == kind
    fields = speech_body()
    del fields["response_format"]
    assert post_speech(server, fields).headers["content-type"] == "audio/mpeg"


def test_samples_are_sent_while_they_are_made() -> None:
    task, text = ToneSpeech(), "a" * 40
    task.fault = lambda spoken, frame: task.gate.clear() if (spoken, frame) == (text, 5) else None
    with (
        running({"tone": task}) as server,
        httpx2.stream("POST", f"{server.url}/v1/audio/speech", json=speech_body(input=text)) as response,
    ):
        pieces = response.iter_raw()  # kept: a response whose pieces are dropped is closed
        first = next(pieces)
        assert task.running and len(first) < 40 * FRAME
        task.gate.set()


def test_a_long_text_is_spoken_sentence_by_sentence_with_pauses(client: openai.OpenAI) -> None:
    text = " ".join(f"Sentence number {index} is neither short nor long." for index in range(12))
    samples = np.frombuffer(speak(client, response_format="pcm", input=text), "<i2")
    assert len(samples) > FRAME * len(text.replace(" ", ""))
    assert (np.convolve(np.abs(samples) < 1, np.ones(RATE // 10)) == RATE // 10).any()  # a pause


def test_pauses_of_a_text_are_silence(client: openai.OpenAI) -> None:
    text = '[pause:1s]One. <think>Hm.</think><break time="2s"/>Two.[pause:500ms]'
    sound = speak(client, response_format="pcm", input=text)
    one, two = pcm16(tone("One.")), pcm16(tone("Two."))
    assert sound == bytes(2 * RATE) + one + bytes(4 * RATE) + two + bytes(RATE)


def test_extensions_reach_the_model(client: openai.OpenAI) -> None:
    content = speak(client, response_format="pcm", extra_body={"seed": 3, "max_frames": 2, "language": "en"})
    assert len(content) == 2 * FRAME * 2


DEEP = "[" * 10_000 + "]" * 10_000
WRONG = [
    ({"model": "other"}, 404, "model_not_found", "model"),
    ({"voice": "carl"}, 400, "voice_not_found", "voice"),
    ({"voice": {"id": "carl"}}, 400, "voice_not_found", "voice"),
    ({"voice": "../x.safetensors"}, 400, "voice_not_found", "voice"),
    ({"response_format": "midi"}, 400, "invalid_value", "response_format"),
    ({"stream_format": "other"}, 400, "invalid_value", "stream_format"),
    ({"speed": 4.1}, 400, "invalid_value", "speed"),
    ({"ref_audio": "UklGRg=="}, 400, "voices_not_supported", "ref_audio"),
    ({"input": ""}, 400, "invalid_value", "input"),
    ({"input": "a\0b"}, 400, "invalid_value", "input"),
    ({"input": "Привет, мир"}, 400, "invalid_value", "input"),
    ({"input": "a" * 4097}, 400, "string_above_max_length", "input"),
    ({"input": 5}, 400, "invalid_value", "input"),
    ({"seed": 3.5}, 400, "invalid_value", "seed"),
    ({"n": 2}, 400, "unsupported_value", "n"),
    ({"sample_rate": 48000, "response_format": "mp3"}, 400, "unsupported_value", "sample_rate"),
    ({"sample_rate": 7999}, 400, "invalid_value", "sample_rate"),
    ({"num_channels": 2}, 400, "unsupported_value", "num_channels"),
    ({"word_timestamps": True}, 400, "unsupported_value", "word_timestamps"),
    ({"max_frames": 0}, 400, "invalid_value", "max_frames"),
]


@pytest.mark.parametrize("fields, status, code, param", WRONG)
def test_what_cannot_be_served_is_refused_by_name(
    server: RunningServer, fields: dict[str, Any], status: int, code: str, param: str
) -> None:
    response = post_speech(server, speech_body(**fields))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)
    assert set(error) == {"message", "type", "param", "code"} and (
        param in error["message"] or param == "input"
    )
    assert response.headers["x-should-retry"] == "false" and response.headers["x-request-id"]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[" * 10_000, b"null", b"\xff", b'{"model": "tone"}'),
        *(f'{{"model": "tone", "{name}": {DEEP}}}'.encode() for name in ("input", "x")),
        *(
            f'{{"model": "tone", "input": "a", "speed": {speed}}}'.encode()
            for speed in ("NaN", "-Infinity", "1e999")
        ),
    ],
)
def test_wrong_json_is_refused(server: RunningServer, content: bytes) -> None:
    response = post_speech(server, content)
    assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"


def test_a_large_body_is_refused_with_and_without_its_length(server: RunningServer) -> None:
    large = b'{"input": "' + b"a" * 70_000 + b'"}'
    assert post_speech(server, large).status_code == 413
    assert post_speech(server, iter([large[:50_000], large[50_000:]])).status_code == 413


@pytest.mark.parametrize("text", ["[" * 4096, "(" * 4096, "[" * 100_000, "a" * 10**6])
def test_a_hard_text_is_answered_in_two_seconds(server: RunningServer, text: str) -> None:
    assert post_speech(server, speech_body(input=text), timeout=2).status_code in (200, 400, 413)


def test_lists_of_models_and_voices(server: RunningServer, client: openai.OpenAI) -> None:
    assert next(iter(client.models.list())).id == "tone"
    assert client.models.retrieve("tone").owned_by == "voxport"
    voices = httpx2.get(f"{server.url}/v1/audio/voices").json()
    assert voices["voices"] == voices["data"] and voices["object"] == "list"
    assert voices["data"][0].items() >= {"id": "anna", "name": "anna", "model": "tone"}.items()
    assert httpx2.get(f"{server.url}/v1/audio/voices?model=x").status_code == 404


def test_a_request_that_waits_too_long_is_refused() -> None:
    task = ToneSpeech(pass_s=0.02)
    with running({"tone": task}, Limits(queue_s=0.2), slots=1) as server:
        (blocker,) = post_in_order(server, speech_body(input="a" * 100))
        response = post_speech(server, speech_body())
        assert response.status_code == 503 and "no slot in 0.2 s" in response.json()["error"]["message"]
        assert blocker.result(10).status_code == 200


def test_a_client_that_reads_nothing_holds_no_slot_and_is_dropped() -> None:
    """The text has three parts of about 30 s. One part waits in the buffer; the next one does not start."""
    task = ToneSpeech()
    text = " ".join(f"{'a' * 280}." for _ in range(6))
    with running({"tone": task}, Limits(job_buffer_mib=2), slots=1, send_s=0.5) as server:
        with httpx2.stream("POST", f"{server.url}/v1/audio/speech", json=speech_body(input=text)) as response:
            assert response.status_code == 200
            wait_until(lambda: not task.running)
            assert post_speech(server, speech_body()).content == pcm16(tone(TEXT))  # the slot is free
            wait_until(lambda: server.models.speech_workers["tone"].is_idle, 5)
        assert server.metric("frames_total", bundle="tone") < len(text)


def test_a_draining_server_finishes_what_runs_and_refuses_the_rest() -> None:
    task, text = ToneSpeech(pass_s=0.02), "This is what runs when the server ends."
    with running({"tone": task}, slots=1) as server:
        runs, waits = post_in_order(server, speech_body(input=text), speech_body(input=text))
        server.models.drain(5)
        assert runs.result(5).content == pcm16(tone(text))
        assert waits.result(5).json()["error"]["code"] == "server_shutting_down"
        assert httpx2.get(f"{server.url}/readyz").status_code == 503
        assert post_speech(server, speech_body()).status_code == 503
