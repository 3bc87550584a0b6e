"""Live text of Qwen3-ASR is append-only: what was given out never changes, on sockets and in events."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import BadRequestError, OpenAI
from support.export.cache import ExportCache
from support.paths import GOLDEN
from support.runtime.recordings import write_recording
from support.serve.http_server import RunningServer, running
from support.serve.realtime_client import COMPLETED, Socket, append, talk, update

from voxport.runtime.families.qwen3_asr import answer as answer_module
from voxport.runtime.families.qwen3_asr import text as text_module
from voxport.runtime.families.qwen3_asr.answer import Answer
from voxport.runtime.families.qwen3_asr.text import TAG, parse_answer, without_repetitions
from voxport.runtime.families.qwen3_asr.transcriptions import LiveTranscription, Segment
from voxport.runtime.opening import open_task
from voxport.runtime.speech_to_text import SpeechToText, TranscriptDelta

FOLDER = GOLDEN / "qwen3_asr"
CLIPS = ("odd", "unseen", "window", "mixed")  # the model takes back some of its text of the first three
SESSION = "/v1/realtime?intent=transcription&model=asr"


@pytest.fixture(scope="module")
def pcm() -> dict[str, np.ndarray]:
    """int16 samples [n] of each clip, at 16 kHz."""
    with np.load(FOLDER / "asr.npz") as golden:
        return {clip: golden[f"{clip}_pcm"] for clip in CLIPS}


@pytest.fixture(scope="module")
def server(exports: ExportCache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("bundles") / "asr"
    arguments = ["--checkpoint", str(FOLDER / "asr"), "--target", "onnx", "--quant", "none", "--no-verify"]
    exports.export(folder, *arguments, "--cache-length", "512")
    with running({"asr": open_task(SpeechToText, folder)}) as started:
        yield started


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the model answered last to each prompt, as it was."""
    found, answer = list[str](), Segment.answer

    def recorded(self: Segment, samples: np.ndarray, kept: str = "") -> Iterator[str]:
        found.append(kept)
        for raw in answer(self, samples, kept):
            found[-1] = raw
            yield raw

    monkeypatch.setattr(Segment, "answer", recorded)
    return found


def events_of(server: RunningServer, samples: np.ndarray, **hints: object) -> list[dict[str, Any]]:
    """Events of a part of live sound, whose steps have 0.5 s."""

    async def conversation(socket: Socket) -> list[dict[str, Any]]:
        form = {"type": "audio/pcm", "rate": 16000}
        await socket.post(update(format=form, transcription={"delay": "minimal", **hints}))
        await append(
            socket, [block.tobytes() for block in np.split(samples, range(1280, len(samples), 1280))]
        )
        await socket.send("input_audio_buffer.commit")
        return await socket.until(COMPLETED)

    return talk(server, conversation, SESSION)


def joined(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"].endswith(".delta"))


@pytest.mark.parametrize("clip", CLIPS)
def test_deltas_of_a_socket_are_the_last_answer(
    server: RunningServer, pcm: dict[str, np.ndarray], answers: list[str], clip: str
) -> None:
    events = events_of(server, pcm[clip])
    text = parse_answer(answers[-1])[1]
    assert joined(events) == events[-1]["transcript"] == text
    earlier = [parse_answer(raw)[1] for raw in answers[:-1]]
    assert (clip == "mixed") == all(text.startswith(each) for each in earlier)


@pytest.mark.parametrize("clip", ["odd", "unseen"])
def test_deltas_of_text_that_may_change_are_another_text(
    server: RunningServer,
    pcm: dict[str, np.ndarray],
    answers: list[str],
    clip: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault that the test above is there for."""
    step = LiveTranscription._step

    def faulty(self: LiveTranscription, *given: Any, **named: Any) -> Iterator[TranscriptDelta]:
        yield from step(self, *given, **named)
        yield from self._answer.more(self._raw)

    monkeypatch.setattr(LiveTranscription, "_step", faulty)
    assert joined(events_of(server, pcm[clip])) != parse_answer(answers[-1])[1]


def test_language_and_prompt_of_a_session_reach_the_model(
    server: RunningServer, pcm: dict[str, np.ndarray], answers: list[str]
) -> None:
    events = events_of(server, pcm["odd"], language="german", prompt="harbour, 3 friends")
    assert not any(event.get("ignored") for event in events)
    assert events[-1]["language"] == "de" and "harbour" in events[-1]["transcript"]
    assert joined(events) == events[-1]["transcript"] == parse_answer(answers[-1], "German")[1]


def test_several_languages_are_no_hint_and_the_one_that_is_heard_is_named(
    server: RunningServer, pcm: dict[str, np.ndarray], answers: list[str], tmp_path: Path
) -> None:
    write_recording(recording := tmp_path / "odd.wav", pcm["odd"] / 32768, 16_000)
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    for languages, language, begin, ignored in (
        (["de", "ja"], "en", "language English", True),
        (["de"], "de", "", False),
    ):
        found = client.audio.transcriptions.with_raw_response.create(
            model="asr", file=recording, extra_body={"languages": languages}
        )
        assert json.loads(found.content)["language"] == language
        assert answers[-1].startswith(begin) and ("languages" in str(found.headers)) == ignored
        assert answers[-1].startswith("language") == ignored  # a forced language is no part of the answer


def test_an_answer_without_words_has_one_segment_and_events_end_with_the_language(
    server: RunningServer, pcm: dict[str, np.ndarray], tmp_path: Path
) -> None:
    write_recording(recording := tmp_path / "odd.wav", pcm["odd"] / 32768, 16_000)
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    found = client.audio.transcriptions.create(model="asr", file=recording, response_format="verbose_json")
    assert found.segments and len(found.segments) == 1
    (segment,) = found.segments
    assert (segment.text, segment.start, segment.end) == (found.text, 0, round(len(pcm["odd"]) / 16_000, 3))
    *_, last = client.audio.transcriptions.create(model="asr", file=recording, stream=True)
    assert last.to_dict()["language"] == found.language == "en"


@pytest.mark.parametrize("clip", CLIPS)
def test_events_of_a_recording_are_its_text(
    server: RunningServer, pcm: dict[str, np.ndarray], tmp_path: Path, clip: str
) -> None:
    write_recording(recording := tmp_path / f"{clip}.wav", pcm[clip] / 32768, 16_000)
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    events = list(client.audio.transcriptions.create(model="asr", file=recording, stream=True))
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    done = events[-1]
    assert done.type == "transcript.text.done" and len(deltas) > 1
    assert "".join(deltas) == done.text


def test_what_cannot_be_transcribed_is_one_error_and_silence_has_its_reason(
    server: RunningServer, tmp_path: Path
) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    noise = np.random.default_rng(0).standard_normal(16_000) / 10
    too_long = "Kubernetes, etcd " * 5000
    for count, prompt, param, reason in (
        (200, "", "file", "200 samples, expected more than 200; it holds no word"),
        (16_000, too_long, "prompt", "prompt: has 65000 tokens"),
    ):
        write_recording(path := tmp_path / "noise.wav", noise[:count], 16_000)
        with pytest.raises(BadRequestError, match=reason) as caught:
            client.audio.transcriptions.create(model="asr", file=path, prompt=prompt)
        assert caught.value.param == param

    async def conversation(socket: Socket) -> dict[str, Any]:
        await socket.post(update(transcription={"prompt": too_long}))
        found: dict[str, Any] = (await socket.until("error"))[-1]["error"]
        return found

    error = talk(server, conversation, SESSION)  # at the update, not with each part
    assert error["param"] == "session.audio.input.transcription.prompt" and "65000 tokens" in error["message"]
    write_recording(path, 0 * noise, 16_000)
    found = client.audio.transcriptions.with_raw_response.create(model="asr", file=path)
    assert not found.parse().text and "silent" in found.headers["x-no-text"]


def streamed(text: str, step: int) -> str:
    """The text of an answer that grows by so many characters."""
    answer, raw = Answer(), f"language English{TAG}{text}"
    found = [delta.text for end in range(0, len(raw), step) for delta in answer.more(raw[:end])]
    return "".join((*found, *(delta.text for delta in answer.more(raw, is_final=True))))


SETTLED = (
    "Jack quizzed 7 foxes by 1 vow; the rest of this sentence is for a place that no repetition reaches. "
)
UNITS = st.just((SETTLED, 1)) | st.tuples(
    st.text("ab, \n", max_size=21) | st.text(SETTLED, max_size=21), st.sampled_from((1, 2, 19, 20, 21, 40))
)


@given(st.lists(UNITS, max_size=4), st.sampled_from((1, 3)))
def test_text_that_was_given_out_stays_when_repetitions_are_removed(
    units: list[tuple[str, int]], step: int
) -> None:
    text = "".join(unit * count for unit, count in units)
    with patch.object(answer_module, "UNSETTLED", 100):
        assert streamed(text, step) == parse_answer(TAG + text)[1]


def test_a_long_answer_is_not_read_again_with_each_token() -> None:
    text, lengths = SETTLED * 100, list[int]()

    def counted(text: str) -> str:
        lengths.append(len(text))
        return without_repetitions(text)

    with (
        patch.object(answer_module, "without_repetitions", counted),
        patch.object(text_module, "without_repetitions", counted),
    ):
        assert streamed(text, 5) == text.strip()
    *with_each_token, _ = lengths
    assert max(with_each_token) < 1.1 * answer_module.UNSETTLED < len(text) / 5


@pytest.mark.parametrize("text", ["x" * 20 + "y" * 5, "x" * 20 + "lantern " * 4, "ab" * 19 + "c", "ab" * 25])
def test_repetitions_at_the_limits(text: str) -> None:
    assert streamed(text, 1) == parse_answer(TAG + text)[1]
