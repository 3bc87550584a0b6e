"""Voices of the page: made from a file and from the microphone, listed, spoken with, and deleted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serve.http_server import RunningServer
from support.serve.page import CloningTone, Watched, as_webm, opened, page_server, speak, wait_for_text

from voxport.runtime.serve.voices.store import VoiceStore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloning() -> CloningTone:
    return CloningTone()


@pytest.fixture(scope="module")
def voice_server(cloning: CloningTone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    store = VoiceStore(tmp_path_factory.mktemp("voices"), 10)
    with page_server(voices=store, clone=cloning) as server:
        yield server


@pytest.fixture
def voice_page(watched: Watched, voice_server: RunningServer) -> Any:
    watched.page.on("dialog", lambda dialog: dialog.accept())
    opened(watched.page, voice_server.url).select_option("#speech-model", "clone")
    return watched.page


def test_a_file_is_a_voice_until_it_is_deleted(
    voice_page: Any, cloning: CloningTone, recording: Path, tmp_path: Path
) -> None:
    page = voice_page
    assert "no voice. Make one" in page.inner_text("#voice-hint")
    page.set_input_files("#voice-file", as_webm(recording, tmp_path / "anna.webm"))
    page.click("#voice-form .primary")
    wait_for_text(page, "#voice-error", "^Give the voice a name.$")
    page.fill("#voice-name", "Anna")
    page.click("#voice-transcribe")
    wait_for_text(page, "#voice-status", "Correct the transcript")
    assert page.input_value("#voice-transcript") == "one two three" and page.is_hidden("#voice-error")
    page.click("#voice-form .primary")
    wait_for_text(page, "#voice-status", "^The voice Anna can speak now.")
    length, transcript = cloning.made.pop()
    assert length == pytest.approx(4, abs=0.1) and transcript == "one two three"
    assert page.locator("#voice option").all_inner_texts() == ["Anna"]
    assert page.inner_text("#voice-hint") == ""
    speak(page, "Hi.")
    wait_for_text(page, "#speech-status", "First sound")
    page.click("#voice-list button")
    wait_for_text(page, "#voice-status", "^The voice Anna is deleted.$")
    assert page.locator("#voice option").count() == page.locator("#voice-list li").count() == 0


def test_the_microphone_is_a_voice(voice_page: Any, cloning: CloningTone) -> None:
    page = voice_page
    page.fill("#voice-name", "Ben")
    page.click("#voice-form .primary")
    wait_for_text(page, "#voice-error", "^Choose a recording of the voice, or record one.$")
    page.click("#voice-record")
    wait_for_text(page, "#voice-status", r"^Recording\. 1\.")
    page.click("#voice-record")
    wait_for_text(page, "#voice-status", r"^Recorded 1\.\d s\.$")
    page.click("#voice-form .primary")
    wait_for_text(page, "#voice-status", "^The voice Ben can speak now.$")
    length, transcript = cloning.made.pop()
    assert 1 <= length < 2 and transcript is None
    wait_for_text(page, "#voice-list", "^Ben, ")


def test_a_server_without_a_folder_offers_no_voices(page: Any) -> None:
    assert page.is_hidden("#voices")
