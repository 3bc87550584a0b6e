"""Mistral's own client transcribes recordings, and lists models and voices."""

from collections.abc import Iterator
from typing import Any

import pytest
from mistralai.client import Mistral
from support.serve.http_server import running
from support.serve.loud_to_text import LoudToText
from support.serve.recordings import three_words
from support.serve.tone_speech import ToneSpeech


@pytest.fixture(scope="module")
def client() -> Iterator[Mistral]:
    with (
        running({"tone": ToneSpeech(), "loud": LoudToText()}) as server,
        Mistral(server_url=server.url) as found,
    ):
        yield found


def request(**fields: Any) -> dict[str, Any]:
    return {"model": "loud", "file": {"file_name": "a.flac", "content": three_words()}, **fields}


@pytest.mark.parametrize("model", ["loud", "voxtral-mini-latest"])
def test_a_recording_is_transcribed(client: Mistral, model: str) -> None:
    found = client.audio.transcriptions.complete(**request(model=model))
    assert (found.text, found.model, found.language) == ("one two three", "loud", "en")
    assert found.usage.prompt_audio_seconds == 1 and not found.segments
    assert found.usage.total_tokens == 2 * 7  # 7 of 80 ms, in and out


@pytest.mark.parametrize(
    "granularity, texts", [("word", ["one", "two", "three"]), ("segment", ["one two three"])]
)
def test_segments_are_words_or_captions(client: Mistral, granularity: str, texts: list[str]) -> None:
    wanted = request(timestamp_granularities=[granularity])
    segments = client.audio.transcriptions.complete(**wanted).segments
    assert segments and [each.text for each in segments] == texts
    assert segments[0].start == 0.0 and segments[0].end == (0.4 if granularity == "segment" else 0.08)
    with client.audio.transcriptions.stream(**wanted) as events:
        found = [each.data for each in events]
    assert [each.text for each in found if each.type == "transcription.segment"] == texts


def test_text_is_streamed(client: Mistral) -> None:
    with client.audio.transcriptions.stream(**request(context_bias=["Anna"])) as events:
        found = [each.data for each in events]
    deltas, last = found[:-1], found[-1]
    assert {each.type for each in deltas} == {"transcription.text.delta"}
    assert last.type == "transcription.done" and last.usage.total_tokens == 14
    assert "".join(each.text for each in deltas) == last.text == "one two three"


def test_models_and_voices_are_listed(client: Mistral) -> None:
    models = {each.id: each for each in client.models.list().data or () if each.type == "base"}
    assert models["tone"].capabilities.audio_speech and models["loud"].capabilities.audio_transcription
    voices = client.audio.voices.list(limit=3)
    assert [each.id for each in voices.items] == ["anna", "bob", "alloy"] and voices.page_size == 3
    found = client.models.retrieve(model_id="voxtral-mini-tts-latest")
    assert found.type == "base" and found.capabilities.audio_speech
