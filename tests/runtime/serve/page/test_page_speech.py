"""Speech of the page: played while it is made, stopped, saved, replaced, and broken off."""

import io
import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from support.serve.browser import WATCH
from support.serve.http_server import RunningServer
from support.serve.page import Watched, opened, page_server, speak, wait_for_text
from support.serve.tone_speech import FRAME, LEVEL, RATE

pytestmark = pytest.mark.slow
TEXT = "A tone of thirty-two characters."


def spoken(url: str, text: str) -> np.ndarray:
    """The answer of the API: int16 [n]."""
    body = json.dumps({"model": "tone", "input": text, "voice": "anna", "response_format": "pcm"}).encode()
    request = urllib.request.Request(f"{url}/v1/audio/speech", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return np.frombuffer(response.read(), "<i2")


def test_speech_is_played_while_it_is_made(page: Any, server: RunningServer) -> None:
    assert page.locator("#voice option").all_inner_texts() == ["anna", "bob"]
    speak(page, TEXT)
    wait_for_text(page, "#speech-status", "Speaking")
    assert page.is_enabled("#speech-stop") and page.is_disabled("#save")
    wait_for_text(page, "#speech-status", r"First sound after 0\.\d+ s")
    page.wait_for_timeout(400)
    found = page.evaluate("watched")
    assert found["pieces"][0]["at"] < found["responseEnd"] - 200
    samples = np.concatenate([piece["samples"] for piece in found["pieces"]])
    np.testing.assert_array_equal(samples, spoken(server.url, TEXT))
    assert 2 * len(samples) == found["bytes"] == 2 * FRAME * len(TEXT)
    starts = [piece["when"] for piece in found["pieces"]]
    lengths = [len(piece["samples"]) / RATE for piece in found["pieces"]]
    np.testing.assert_allclose(np.diff(starts), lengths[:-1], atol=1e-9)
    first, end = starts[0], starts[-1] + lengths[-1]
    window = 1024 / RATE + 0.03
    before = [rms for at, rms in found["levels"] if at < first]
    during = [rms for at, rms in found["levels"] if first + window < at < end - 0.03]
    after = [rms for at, rms in found["levels"] if at > end + window]
    assert before and after and max(before) == max(after) == 0
    np.testing.assert_allclose(during, LEVEL / 2**0.5, rtol=0.02)


def test_voices_are_shown_by_name_and_requested_by_id(page: Any, server: RunningServer) -> None:
    """Two of one name are told apart by their times and lengths."""
    voices: list[dict[str, Any]] = [{"id": "voice_3f", "name": "Anna \u00e9", "model": "tone"}]
    page.route("**/v1/audio/voices*", lambda route: route.fulfill(json={"data": voices, "voices": voices}))
    opened(page, server.url)
    assert page.locator("#voice option").all_inner_texts() == ["Anna \u00e9"]
    assert page.input_value("#voice") == "voice_3f"
    made = {"name": "Ben", "model": "tone", "created_at": 1_790_000_000}
    voices[:] = [made | {"id": f"voice_{length}", "seconds": length} for length in (3, 4)]
    opened(page, server.url)
    labels = page.locator("#voice option").all_inner_texts()
    assert [re.sub(r", .*2026.*,", ", 2026,", label) for label in labels] == [
        "Ben, 2026, 3.0 s",
        "Ben, 2026, 4.0 s",
    ]


@pytest.mark.parametrize(
    "changes, hint, says",
    [
        ({"follows_instructions": True}, "instructions", "Describe the voice, as in"),
        ({"clones": True}, "voice", "no voice. The server needs the option --voices"),
    ],
)
def test_a_model_without_voices_says_what_to_do(
    page: Any, server: RunningServer, changes: dict[str, bool], hint: str, says: str
) -> None:
    offered = page.evaluate("fetch('/v1/page').then(response => response.json())")
    offered["speaking"][0] |= changes
    page.route("**/v1/page", lambda route: route.fulfill(json=offered))
    page.route("**/v1/audio/voices", lambda route: route.fulfill(json={"voices": []}))
    assert page.is_disabled("#instructions")
    opened(page, server.url)
    assert says in page.inner_text(f"#{hint}-hint")
    assert page.is_visible("#instructions") == page.is_enabled("#instructions") == (hint == "instructions")


def test_speech_is_played_again(page: Any, server: RunningServer) -> None:
    assert page.is_hidden("#speech-audio")
    speak(page, "Again.")
    wait_for_text(page, "#speech-status", "First sound")
    audio = page.locator("#speech-audio")
    audio.evaluate("each => each.play()")
    page.wait_for_function("() => document.querySelector('audio').ended")
    assert audio.evaluate("each => each.duration") == pytest.approx(6 * FRAME / RATE)
    speak(page, "b" * 300)
    assert page.is_hidden("#speech-audio")
    page.click("#speech-stop")


def test_the_sound_waits_for_a_click(page: Any) -> None:
    assert page.evaluate("watched.levels.length") == 0


def test_stop_ends_the_request_and_the_sound(page: Any, server: RunningServer) -> None:
    before = server.metric("cancelled_total", reason="client")
    speak(page, "a" * 300)
    wait_for_text(page, "#speech-status", "Speaking")
    page.click("#speech-stop")
    wait_for_text(page, "#speech-status", "Stopped")
    stopped = time.monotonic()
    worker = server.models.speech_workers["tone"]
    while server.metric("cancelled_total", reason="client") == before or not worker.is_idle:
        assert time.monotonic() < stopped + 1
        time.sleep(0.01)
    page.wait_for_timeout(300)
    assert page.evaluate("watched.levels.at(-1)[1]") == 0
    assert len(page.evaluate("watched.pieces")) < 150
    assert page.evaluate("document.activeElement.id") == "speak"


def test_speech_is_saved_as_wav(page: Any, server: RunningServer) -> None:
    speak(page, "Saved.")
    with page.expect_download() as download:
        page.click("#save")
    assert download.value.suggested_filename == "speech.wav"
    samples, rate = soundfile.read(io.BytesIO(Path(download.value.path()).read_bytes()), dtype="int16")
    assert rate == RATE
    np.testing.assert_array_equal(samples, spoken(server.url, "Saved."))


def test_a_second_text_replaces_the_first(page: Any, server: RunningServer) -> None:
    speak(page, "b" * 300)
    wait_for_text(page, "#speech-status", "Speaking")
    speak(page, "Short text.")
    wait_for_text(page, "#speech-status", "First sound")
    assert wait_for_text(page, "#speech-time", "of 0.9 s")
    assert server.models.speech_workers["tone"].is_idle


def test_slow_speech_is_played_without_overlaps(watched: Watched) -> None:
    with page_server(pace_s=0.16) as slow:
        speak(opened(watched.page, slow.url), "Twice too slow.")
        wait_for_text(watched.page, "#speech-status", "First sound")
        pieces = watched.page.evaluate("watched.pieces")
    starts, lengths = [[piece["when"], len(piece["samples"]) / RATE] for piece in pieces], 0.0
    for start, length in starts:
        assert start >= lengths - 1e-9  # nothing overlaps
        lengths = start + length


def test_speech_that_breaks_off_is_played_and_reported(browser: Any, server: RunningServer) -> None:
    context = browser.new_context()
    context.add_init_script(WATCH)
    page = opened(context.new_page(), server.url)
    speak(page, "Broken text.")
    assert wait_for_text(page, "#speech-error", "early") == "The server ended the speech early."
    # a browser drops what the page has not read yet when a connection breaks
    assert 1 <= len(page.evaluate("watched.pieces")) <= 5 and page.is_enabled("#save")
    assert page.inner_text("#speech-status") == "" and page.is_disabled("#speech-stop")
    context.close()
