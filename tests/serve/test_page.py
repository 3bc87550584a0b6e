"""The page in a browser: speech is heard while it is made, files and the microphone are transcribed."""

import base64
import io
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import soundfile
from support.browser import LOW_CONTRAST, UNLABELLED, WATCH, chromium
from support.page_server import FRAME, LEVEL, RATE, PageServer, running_server

from runtime.serve.keys import Keys

pytestmark = pytest.mark.slow
TEXT = "A tone of thirty-two characters."
KEY = "0123456789-abcdef"
SECOND = 48000  # samples of the recording
SOUNDS = ((1.0, 1.3), (1.8, 2.2), (2.8, 3.1))  # seconds of the loud parts of the recording
FOREIGN = "http://voxport.test:%d"  # is not localhost, so the page has no microphone there
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    """Three loud sounds."""
    samples = np.zeros(4 * SECOND)
    for start, end in SOUNDS:
        times = np.arange(round(start * SECOND), round(end * SECOND))
        samples[times] = 0.4 * np.sin(2 * np.pi * 300 * times / SECOND)
    path = tmp_path_factory.mktemp("recording") / "sounds.wav"
    soundfile.write(path, samples, SECOND, subtype="PCM_16")
    return path


@pytest.fixture(scope="module")
def browser(recording) -> Iterator[Any]:
    with chromium(recording) as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with running_server(origin=FOREIGN) as server:
        yield server


@pytest.fixture(scope="module")
def server_with_keys() -> Iterator[PageServer]:
    with running_server(Keys({"me": sha256(KEY.encode()).digest()})) as server:
        yield server


class Watched:
    """A page, what it wrote to the console, and where its requests went."""

    def __init__(self, page: Any):
        self.page, self.messages, self.hosts = page, [], set()
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.on("websocket", lambda socket: self.hosts.add(urlsplit(socket.url).netloc))


@pytest.fixture
def watched(browser) -> Iterator[Watched]:
    context = browser.new_context(viewport=DESKTOP, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.add_init_script(WATCH)
    yield Watched(page)
    context.close()


@pytest.fixture
def page(watched, server) -> Iterator[Any]:
    """The loaded page. It stays on its host and logs nothing."""
    opened(watched.page, server.url)
    yield watched.page
    assert watched.messages == []
    assert {host for host in watched.hosts if host} == {f"127.0.0.1:{server.port}"}


def opened(page: Any, url: str) -> Any:
    page.goto(url)
    page.wait_for_selector("#server-rows tr")
    return page


def wait_for_text(page: Any, selector: str, pattern: str) -> str:
    """The text of an element, once it matches."""
    argument = [selector, pattern]
    page.wait_for_function("([s, p]) => document.querySelector(s).innerText.match(p)", arg=argument)
    return page.inner_text(selector)


def spoken(url: str, text: str) -> np.ndarray:
    """The answer of the API: int16 [n]."""
    body = json.dumps({"model": "tone", "input": text, "voice": "alto", "response_format": "pcm"}).encode()
    request = urllib.request.Request(f"{url}v1/audio/speech", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return np.frombuffer(response.read(), "<i2")


def speak(page: Any, text: str) -> None:
    page.fill("#text", text)
    page.click("#speak")


def test_speech_is_heard_while_it_is_made(page, server):
    assert page.locator("#voice option").all_inner_texts() == ["alto", "bass"]
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


def test_the_sound_waits_for_a_click(page):
    assert page.evaluate("watched.levels.length") == 0


def test_stop_ends_the_request_and_the_sound(page, server):
    before = server.metric("cancelled_total", reason="client")
    speak(page, "a" * 300)
    wait_for_text(page, "#speech-status", "Speaking")
    page.click("#speech-stop")
    wait_for_text(page, "#speech-status", "Stopped")
    stopped = time.monotonic()
    while server.metric("cancelled_total", reason="client") == before:
        assert time.monotonic() < stopped + 1
        time.sleep(0.01)
    assert server.models.speaking["tone"].is_idle
    page.wait_for_timeout(300)
    assert page.evaluate("watched.levels.at(-1)[1]") == 0
    assert len(page.evaluate("watched.pieces")) < 150
    assert page.evaluate("document.activeElement.id") == "speak"


def test_speech_is_saved_as_wav(page, server):
    speak(page, "Saved.")
    with page.expect_download() as download:
        page.click("#save")
    assert download.value.suggested_filename == "speech.wav"
    samples, rate = soundfile.read(io.BytesIO(Path(download.value.path()).read_bytes()), dtype="int16")
    assert rate == RATE
    np.testing.assert_array_equal(samples, spoken(server.url, "Saved."))


def test_a_second_text_replaces_the_first(page, server):
    speak(page, "b" * 300)
    wait_for_text(page, "#speech-status", "Speaking")
    speak(page, "Short text.")
    wait_for_text(page, "#speech-status", "First sound")
    assert wait_for_text(page, "#speech-time", "of 0.9 s")
    assert server.models.speaking["tone"].is_idle


def test_slow_speech_pauses_and_says_so(watched):
    with running_server(pace_s=0.16) as slow:
        speak(opened(watched.page, slow.url), "Twice too slow.")
        wait_for_text(watched.page, "#speech-status", r"The sound paused [2-5] times")
        pieces = watched.page.evaluate("watched.pieces")
    starts, lengths = [[piece["when"], len(piece["samples"]) / RATE] for piece in pieces], 0.0
    for start, length in starts:
        assert start >= lengths - 1e-9  # nothing overlaps
        lengths = start + length


def test_speech_that_breaks_off_is_heard_and_reported(browser, server):
    context = browser.new_context()
    context.add_init_script(WATCH)
    page = opened(context.new_page(), server.url)
    speak(page, "Broken text.")
    assert wait_for_text(page, "#speech-error", "early") == "The server ended the speech early."
    assert len(page.evaluate("watched.pieces")) == 5 and page.is_enabled("#save")
    assert page.inner_text("#speech-status") == "" and page.is_disabled("#speech-stop")
    context.close()


def test_a_recording_is_transcribed(page, recording):
    page.set_input_files("#file", recording)
    wait_for_text(page, "#transcription-status", "Transcribed")
    assert page.inner_text("#transcript") == "one two three"
    assert page.is_hidden("#words") and page.is_hidden("#transcription-error")


def test_words_have_times(page, recording):
    page.check("#word-times")
    page.set_input_files("#file", recording)
    wait_for_text(page, "#transcription-status", "Transcribed 4.0 s of audio")
    times = [float(text.removesuffix(" s")) for text in page.locator("#words span").all_inner_texts()]
    np.testing.assert_allclose(times, [start for start, _ in SOUNDS], atol=0.081)
    assert re.findall("[a-z]{3,}", page.inner_text("#words")) == ["one", "two", "three"]


def test_a_dropped_recording_is_transcribed(page, recording):
    drop = """(target, text) => {
      const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
      const data = new DataTransfer();
      data.items.add(new File([bytes], "dropped.wav"));
      target.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
    }"""
    page.locator("#drop").evaluate(drop, base64.b64encode(recording.read_bytes()).decode())
    wait_for_text(page, "#transcript", "^one two three$")


def test_the_microphone_gives_the_transcript_of_its_file(page):
    page.click("#microphone")
    wait_for_text(page, "#transcription-status", "Listening")
    wait_for_text(page, "#transcript", "one two")  # while the microphone is open
    wait_for_text(page, "#transcription-time", "^4")
    page.click("#transcription-stop")
    wait_for_text(page, "#transcription-status", r"Transcribed \d\.\d s of audio")
    assert page.inner_text("#transcript") == "one two three"
    assert page.is_hidden("#words") and page.is_hidden("#microphone-wave")


def test_words_of_the_microphone_have_times_after_its_end(page):
    page.check("#word-times")
    page.click("#microphone")
    wait_for_text(page, "#transcript", "one two three")
    page.click("#transcription-stop")
    wait_for_text(page, "#transcription-status", r"Transcribed \d\.\d s of audio")
    times = [float(text.removesuffix(" s")) for text in page.locator("#words span").all_inner_texts()]
    assert len(times) == 3 and times[1] - times[0] == pytest.approx(0.8, abs=0.09)


def test_a_recording_ends_the_microphone(page, server, recording):
    page.click("#microphone")
    wait_for_text(page, "#transcription-status", "Listening")
    page.set_input_files("#file", recording)
    wait_for_text(page, "#transcription-status", "Transcribed")
    assert page.inner_text("#transcript") == "one two three"
    assert server.models.listening["count"].is_idle


def test_the_server_is_shown(page):
    assert page.locator("#server-rows th").all_inner_texts() == ["tone", "count"]
    assert page.locator("#server-rows tr:first-child td").all_inner_texts()[:2] == ["0", "0 of 4"]
    speak(page, "c" * 300)
    wait_for_text(page, "#server-rows tr:first-child", r"1 of 4\s+0\.[2-4]\d")
    page.click("#speech-stop")
    wait_for_text(page, "#server-rows tr:first-child", "0 of 4")


def test_errors_are_shown_as_the_api_tells_them(browser, server):
    context = browser.new_context()
    page = opened(context.new_page(), server.url)
    speak(page, "d" * 4097)
    expected = "Input: has 4097 characters, expected at most 4096."
    assert wait_for_text(page, "#speech-error", "Input") == expected
    assert page.inner_text("#text-count") == "4,097 of 4,096 characters"
    page.set_input_files("#file", {"name": "a.wav", "mimeType": "audio/wav", "buffer": b"no sound"})
    assert wait_for_text(page, "#transcription-error", "File: ").endswith(".")
    page.click("summary")
    page.fill("#instructions", "Whisper.")
    speak(page, "Short.")
    wait_for_text(page, "#speech-error", "Instructions: this model takes none")
    page.fill("#instructions", "")
    speak(page, "Short.")
    wait_for_text(page, "#speech-status", "First sound")
    assert page.is_hidden("#speech-error")
    context.close()


def test_a_key_opens_the_server_and_stays_in_the_tab(browser, server_with_keys):
    context = browser.new_context()
    page = context.new_page()
    page.goto(server_with_keys.url)
    assert wait_for_text(page, "#page-error", "key") == "This server needs an API key. Enter one above."
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.type(KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector("#server-rows tr")
    assert page.is_hidden("#page-error")
    speak(page, "Short.")
    wait_for_text(page, "#speech-status", "First sound")
    page.click("#microphone")
    wait_for_text(page, "#transcript", "one")
    page.click("#transcription-stop")
    wait_for_text(page, "#transcription-status", "Transcribed")
    page.evaluate("sessionStorage.setItem('voxport.key', 'another')")
    page.click("#microphone")
    wait_for_text(page, "#transcription-error", "The API key is missing or wrong")
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    page = context.new_page()  # another tab
    page.goto(server_with_keys.url)
    wait_for_text(page, "#page-error", "This server needs an API key")
    context.close()


def test_the_page_says_why_there_is_no_microphone(browser, server):
    context = browser.new_context()
    origin = FOREIGN % server.port
    page = opened(context.new_page(), origin)
    hint = page.inner_text("#microphone-hint")
    assert "only at localhost or over TLS" in hint and origin in hint and "--tls-cert" in hint
    assert page.is_disabled("#microphone")
    speak(page, "Short.")
    wait_for_text(page, "#speech-status", "First sound")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_page_can_be_read_in_each_size_and_scheme(page, recording, tmp_path, size, scheme):
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


def test_every_control_is_reached_by_the_keyboard_and_shows_its_focus(page):
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


def test_news_reach_a_screen_reader(page):
    roles = "['speech-status', 'transcription-status', 'transcript', 'speech-error'].map(id => "
    roles += "document.getElementById(id).role)"
    assert page.evaluate(roles) == ["status", "status", "log", "alert"]
    assert page.get_attribute("#transcript", "aria-live") == "polite"


def test_the_policy_forbids_what_the_page_does_not_need(page, server):
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
