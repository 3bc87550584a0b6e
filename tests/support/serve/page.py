"""The page in a browser: what tests do with it, the recording that its microphone plays, and a server with
two tasks without a model: a tone as long as its text, and words for sounds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import av
import numpy as np
from safetensors.numpy import save
from support.serve.http_server import DEFAULT, RunningServer, Tasks, running
from support.serve.loud_to_text import LoudToText
from support.serve.tone_speech import RATE, ToneSpeech

from voxport.runtime.families.qwen3_tts.cloning import read_samples
from voxport.runtime.serve.http.access import Keys
from voxport.runtime.serve.voices.store import VoiceStore
from voxport.runtime.text_to_speech import TextToSpeech

KEY = "0123456789-abcdef"
SECOND = 48000  # samples of the recording
SOUNDS = ((1.0, 1.3), (1.8, 2.2), (2.8, 3.1))  # seconds of the loud parts of the recording
FOREIGN = "http://voxport.test"  # is not localhost, so the page has no microphone there
BROKEN = "Broken"  # a text that begins so fails after five frames
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


class Watched:
    """A page, what it wrote to the console, and where its requests went."""

    def __init__(self, page: Any) -> None:
        self.page, self.messages, self.hosts = page, list[str](), set[str]()
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.on("websocket", lambda socket: self.hosts.add(urlsplit(socket.url).netloc))


def opened(page: Any, url: str) -> Any:
    page.goto(url)
    page.wait_for_selector("#speech-model:enabled")
    return page


def wait_for_text(page: Any, selector: str, pattern: str) -> str:
    """The text of an element, once it matches."""
    argument = [selector, pattern]
    page.wait_for_function("([s, p]) => document.querySelector(s).innerText.match(p)", arg=argument)
    return str(page.inner_text(selector))


def speak(page: Any, text: str) -> None:
    page.fill("#text", text)
    page.click("#speak")


def as_webm(recording: Path, path: Path) -> Path:
    """Opus in WebM, as browsers record it."""
    with av.open(str(recording)) as source, av.open(str(path), "w", format="webm") as target:
        stream = target.add_stream("libopus", rate=SECOND)
        for frame in (*source.decode(audio=0), None):
            target.mux(stream.encode(frame))
    return path


def break_off(text: str, frame: int) -> None:
    if text.startswith(BROKEN) and frame == 5:
        raise RuntimeError("broken")


class CloningTone(ToneSpeech):
    """Has no voices of its own. `made` has the length of each recording, and its transcript."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[float, str | None]] = []

    def voices(self) -> dict[str, int]:
        return {}

    def voice_checkpoint(self) -> str | None:
        return "tone"

    def check_cloning(self) -> None: ...

    def make_voice(self, recording: Path, transcript: str | None = None) -> bytes:
        self.made.append((len(read_samples(recording, RATE)) / RATE, transcript))
        return save({"vector": np.ones(4, np.float32)}, {"model": "tone"})


@contextmanager
def page_server(
    keys: Keys | None = None, pace_s: float = 0.02, voices: VoiceStore | None = None, **more: TextToSpeech
) -> Iterator[RunningServer]:
    tone = ToneSpeech(pace_s, break_off)
    tasks: Tasks = {"tone": tone, "count": LoudToText(whole_sounds=True), **more}
    with running(tasks, DEFAULT, keys, slots=4, origins=(FOREIGN,), voices=voices) as server:
        yield server
