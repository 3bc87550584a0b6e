"""Live transcription: words are printed as soon as they are known."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from runtime.audio.captions import Word, as_word_line

if TYPE_CHECKING:
    from runtime.audio.live import LiveSource
    from runtime.speech_to_text import SpeechToText, TranscriptDelta


def transcribe_live(task: SpeechToText, arguments: argparse.Namespace) -> None:
    """Transcribes stdin.

    The first interruption ends the sound, and the remaining text is printed. The second one stops.
    """
    from runtime.audio.live import LiveSource, raw_stdin

    task.check_live()
    drops = arguments.late == "drop"
    source = LiveSource(raw_stdin(), arguments.rate, arguments.channels, task.sample_rate, drops=drops)
    prints_text = arguments.format == "text" and not arguments.timestamps
    with _first_interruption(source.end):
        for delta in task.transcribe(
            source.blocks(), delay_ms=arguments.delay_ms, live=True, chunk_tokens=arguments.chunk
        ):
            if prints_text:
                print(delta.text, end="", flush=True)
            else:
                _print_words(delta, source, arguments.format == "json")
    if prints_text:
        print(flush=True)


def _print_words(delta: TranscriptDelta, source: LiveSource, as_json: bool) -> None:
    """One line per word, with times of the source: sound that was dropped before the word counts."""
    for word in delta.words:
        print(as_word_line(_in_source_time(word, source), as_json), flush=True)


def _in_source_time(word: Word, source: LiveSource) -> Word:
    start, end = (at + source.lost_before(at) for at in (word.start, word.end))
    return replace(word, start=start, end=end)


@contextmanager
def _first_interruption(end: Callable[[], None]) -> Iterator[None]:
    """Calls `end` on the first SIGINT or SIGTERM; another one raises KeyboardInterrupt."""

    def handle(number: int, frame: object) -> None:
        end()
        for each in before:
            signal.signal(each, signal.default_int_handler)

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
