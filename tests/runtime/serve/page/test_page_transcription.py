"""Transcription of the page: files and the microphone."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from support.serve.http_server import RunningServer
from support.serve.loud_to_text import LOUD
from support.serve.page import FOREIGN, SECOND, SOUNDS, Watched, as_webm, opened, speak, wait_for_text

pytestmark = pytest.mark.slow
SENT_RATE = 24000  # rate of the microphone's audio


def word_times(page: Any) -> list[float]:
    """Seconds, as they are shown."""
    return [float(text.removesuffix(" s")) for text in page.locator("#words span").all_inner_texts()]


def starts_of_sounds(frames: list[str]) -> np.ndarray:
    """Seconds in the audio of a socket's messages at which a loud sound follows silence."""
    messages = [json.loads(frame) for frame in frames]
    blocks = [base64.b64decode(each["audio"]) for each in messages if "audio" in each]
    loud = np.flatnonzero(np.abs(np.frombuffer(b"".join(blocks), "<i2").astype(float)) > 32768 * LOUD)
    return loud[np.diff(loud, prepend=-SENT_RATE) > 0.2 * SENT_RATE] / SENT_RATE


def test_a_recording_is_transcribed(page: Any, recording: Path) -> None:
    page.set_input_files("#file", recording)
    wait_for_text(page, "#transcription-status", "Transcribed")
    assert page.inner_text("#transcript") == "one two three"
    assert page.is_hidden("#words") and page.is_hidden("#transcription-error")


REFUSED = {"message": "file: is unknown", "code": "invalid_audio", "param": "file"}


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_recording_of_a_browser_is_transcribed(
    watched: Watched, server: RunningServer, recording: Path, tmp_path: Path, is_refused: bool
) -> None:
    """The browser decodes what the server cannot read."""
    page = opened(watched.page, server.url)

    def answer(route: Any) -> None:
        is_wav = b"RIFF" in route.request.post_data_buffer
        route.continue_() if is_wav else route.fulfill(status=400, json={"error": REFUSED})

    if is_refused:
        page.route("**/v1/audio/transcriptions", answer)
    page.set_input_files("#file", as_webm(recording, tmp_path / "talk.webm"))
    said = wait_for_text(page, "#transcription-status", r"Transcribed [34]\.\d s of audio\.")
    assert page.inner_text("#transcript") == "one two three"
    if is_refused:
        assert said.endswith("The browser decoded the recording. File: is unknown.")


def test_no_speech_is_said(page: Any, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "silence.wav", np.zeros(SECOND), SECOND)
    page.set_input_files("#file", tmp_path / "silence.wav")
    wait_for_text(page, "#transcription-status", "^No speech was found: the sound is silent")
    assert page.is_disabled("#save-txt") and page.is_disabled("#save-srt")


def test_a_transcript_is_saved(page: Any, server: RunningServer, recording: Path) -> None:
    page.set_input_files("#file", recording)
    wait_for_text(page, "#transcription-status", "Transcribed 4.0 s of audio")
    for kind in ("txt", "srt"):
        with page.expect_download() as download:
            page.click(f"#save-{kind}")
        assert download.value.suggested_filename == f"{recording.stem}.{kind}"
        fields = {"model": "count", "response_format": kind.replace("txt", "text")}
        files = {"file": recording.read_bytes()}
        answer = httpx2.post(f"{server.url}/v1/audio/transcriptions", data=fields, files=files)
        assert Path(download.value.path()).read_text() == answer.text


def test_words_have_times(page: Any, recording: Path) -> None:
    page.check("#word-times")
    page.set_input_files("#file", recording)
    wait_for_text(page, "#transcription-status", "Transcribed 4.0 s of audio")
    times = word_times(page)
    np.testing.assert_allclose(times, [start for start, _ in SOUNDS], atol=0.081)
    assert re.findall("[a-z]{3,}", page.inner_text("#words")) == ["one", "two", "three"]


def test_a_dropped_recording_is_transcribed(page: Any, recording: Path) -> None:
    drop = """(target, text) => {
      const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
      const data = new DataTransfer();
      data.items.add(new File([bytes], "dropped.wav"));
      target.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
    }"""
    page.locator("#drop").evaluate(drop, base64.b64encode(recording.read_bytes()).decode())
    wait_for_text(page, "#transcript", "^one two three$")


def test_the_microphone_gives_the_transcript_of_its_file(page: Any) -> None:
    page.click("#microphone")
    wait_for_text(page, "#transcription-status", "Listening")
    wait_for_text(page, "#transcript", "one two")  # while the microphone is open
    wait_for_text(page, "#transcription-time", "^4")
    page.click("#transcription-stop")
    wait_for_text(page, "#transcription-status", r"Transcribed \d\.\d s of audio")
    assert page.inner_text("#transcript") == "one two three"
    assert page.is_hidden("#words") and page.is_hidden("#microphone-wave")


def test_words_of_the_microphone_have_times_while_it_is_open(page: Any) -> None:
    requests, frames = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: frames.append(frame)))
    page.check("#word-times")
    page.click("#microphone")
    wait_for_text(page, "#words", r"one\s[^]*two\s[^]*three")
    assert page.inner_text("#transcription-status") == "Listening."
    times = word_times(page)
    np.testing.assert_allclose(times, starts_of_sounds(frames), atol=0.085)
    page.click("#transcription-stop")
    wait_for_text(page, "#transcription-status", r"Transcribed \d\.\d s of audio")
    assert word_times(page) == times and page.inner_text("#transcript") == "one two three"
    assert not [url for url in requests if "/v1/audio/transcriptions" in url]


def test_a_recording_ends_the_microphone(page: Any, server: RunningServer, recording: Path) -> None:
    page.click("#microphone")
    wait_for_text(page, "#transcription-status", "Listening")
    page.set_input_files("#file", recording)
    wait_for_text(page, "#transcription-status", "Transcribed")
    assert page.inner_text("#transcript") == "one two three"
    assert server.models.transcription_workers["count"].is_idle


def test_the_page_says_why_there_is_no_microphone(browser: Any, server: RunningServer) -> None:
    context = browser.new_context()
    origin = f"{FOREIGN}:{server.port}"
    page = opened(context.new_page(), origin)
    hint = page.inner_text("#microphone-hint")
    assert "only at localhost or over TLS" in hint and origin in hint and "--tls-cert" in hint
    assert page.is_disabled("#microphone")
    speak(page, "Short.")
    wait_for_text(page, "#speech-status", "First sound")
    context.close()
