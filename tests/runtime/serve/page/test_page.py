"""The page in a browser: what it shows, keys, sizes, the keyboard, and its policy."""

from pathlib import Path
from typing import Any

import pytest
from support.serve.browser import LOW_CONTRAST, UNLABELLED
from support.serve.http_server import RunningServer
from support.serve.page import DESKTOP, KEY, PHONE, opened, speak, wait_for_text

pytestmark = pytest.mark.slow
FAULT = {"message": "voice: is hoarse", "code": "invalid_value", "param": "voice"}


def test_errors_are_shown_with_the_message_of_the_api(browser: Any, server: RunningServer) -> None:
    context = browser.new_context()
    page = opened(context.new_page(), server.url)
    speak(page, "d" * 4097)
    expected = "The text has 4,097 characters, expected at most 4,096."
    assert wait_for_text(page, "#speech-error", "text") == expected
    assert page.inner_text("#text-count") == "4,097 of 4,096 characters"
    page.set_input_files("#file", {"name": "a.wav", "mimeType": "audio/wav", "buffer": b"no sound"})
    assert wait_for_text(page, "#transcription-error", "File: ").endswith(".")
    page.set_input_files("#file", {"name": "b.wav", "mimeType": "audio/wav", "buffer": b"0" * 26 * 2**20})
    assert "has 26.0 MiB, expected at most 25 MiB" in wait_for_text(page, "#transcription-error", "MiB")
    speak(page, " ")
    wait_for_text(page, "#speech-error", "no text to speak")
    page.click("summary")
    for seed in ("-5", "1" + "0" * 20, "1.5", ""):
        page.fill("#seed", seed)
        speak(page, "Short.")
        wait_for_text(page, "#speech-error", "^Seed: expected a whole number, -1 to 9,007,199,254,740,991.$")
        assert page.evaluate("document.activeElement.id") == "speak"
    page.fill("#seed", "5")
    page.route("**/v1/audio/speech", lambda route: route.fulfill(status=400, json={"error": FAULT}))
    speak(page, "Short.")
    wait_for_text(page, "#speech-error", "^Voice: is hoarse.$")
    page.unroute("**/v1/audio/speech")
    speak(page, "Short.")
    wait_for_text(page, "#speech-status", "First sound")
    assert page.is_hidden("#speech-error")
    context.close()


def test_a_key_opens_the_server_and_stays_in_the_tab(browser: Any, server_with_keys: RunningServer) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(server_with_keys.url)
    assert wait_for_text(page, "#page-error", "key") == "This server needs an API key. Enter one above."
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.type(KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector("#speech-model:enabled")
    assert page.is_hidden("#page-error")
    speak(page, "Short.")
    wait_for_text(page, "#speech-status", "First sound")
    page.click("#microphone")
    wait_for_text(page, "#transcript", "one")
    page.click("#transcription-stop")
    wait_for_text(page, "#transcription-status", "Transcribed")
    page.evaluate("sessionStorage.setItem('voxport.key', 'another')")
    page.click("#microphone")
    wait_for_text(page, "#transcription-error", "^This API key is wrong")
    page.reload()
    wait_for_text(page, "#page-error", "^This API key is wrong. Enter another one above.$")
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    page = context.new_page()  # another tab
    page.goto(server_with_keys.url)
    wait_for_text(page, "#page-error", "This server needs an API key")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_page_can_be_read_in_each_size_and_scheme(
    page: Any, recording: Path, tmp_path: Path, size: dict[str, int], scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    page.check("#word-times")
    page.set_input_files("#file", recording)
    wait_for_text(page, "#transcription-status", "Transcribed")
    speak(page, "e" * 300)
    page.wait_for_timeout(1500)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= size["width"]
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate(UNLABELLED) == []
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    page.click("#speech-stop")


def test_every_control_is_reached_by_the_keyboard_and_shows_its_focus(page: Any) -> None:
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        name, width = page.evaluate(
            "[document.activeElement.id, getComputedStyle(document.activeElement).outlineWidth]"
        )
        if name and name in reached:
            break
        assert width == "3px"
        reached.append(name)
    order = ["key", "speech-model", "voice", "text", "speak", "transcription-model", "word-times", "file"]
    order += ["microphone", "transcript"]
    assert [name for name in reached if name in order] == order
    page.focus("#text")
    page.keyboard.press("Tab")  # More settings
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    wait_for_text(page, "#speech-status", "Speaking")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    wait_for_text(page, "#speech-status", "Stopped")


def test_news_reach_a_screen_reader(page: Any) -> None:
    roles = "['speech-status', 'transcription-status', 'transcript', 'speech-error'].map(id => "
    roles += "document.getElementById(id).role)"
    assert page.evaluate(roles) == ["status", "status", "log", "alert"]
    assert page.get_attribute("#transcript", "aria-live") == "polite"


def test_the_policy_forbids_what_the_page_does_not_need(page: Any, server: RunningServer) -> None:
    blocked = """async () => {
      const errors = [];
      addEventListener("securitypolicyviolation", event => errors.push(event.effectiveDirective));
      const script = document.createElement("script");
      script.textContent = "window.isInjected = true";
      document.body.append(script);
      const image = new Image();
      image.src = "http://127.0.0.2:9/a.png";
      await fetch("http://127.0.0.2:9/").catch(() => {});
      await new Promise(resolve => setTimeout(resolve, 200));
      return [window.isInjected, errors.sort()];
    }"""
    other = page.context.new_page()
    other.goto(server.url)
    assert other.evaluate(blocked) == [None, ["connect-src", "img-src", "script-src-elem"]]
