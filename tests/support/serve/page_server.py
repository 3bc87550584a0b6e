"""A server for the page, with two tasks without a model: a tone as long as its text, and words for sounds."""

from collections.abc import Iterator
from contextlib import contextmanager

from support.serve.http_server import DEFAULT, RunningServer, Tasks, running
from support.serve.loud_to_text import LoudToText
from support.serve.page import FOREIGN
from support.serve.tone_speech import ToneSpeech

from voxport.runtime.serve.http.access import Keys

BROKEN = "Broken"  # a text that begins so fails after five frames


def break_off(text: str, frame: int) -> None:
    if text.startswith(BROKEN) and frame == 5:
        raise RuntimeError("broken")


@contextmanager
def page_server(keys: Keys | None = None, pace_s: float = 0.02) -> Iterator[RunningServer]:
    tasks: Tasks = {"tone": ToneSpeech(pace_s, break_off), "count": LoudToText(whole_sounds=True)}
    with running(tasks, DEFAULT, keys, slots=4, origins=(FOREIGN,)) as server:
        yield server
