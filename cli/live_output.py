"""Prints the transcript of live sound while it is spoken: words, turns or captions."""

import argparse
import json
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from voxport.runtime.audio.captions import Word, as_json_line, as_text_line, cues, srt_cue, vtt_cue
from voxport.runtime.speech_to_text import TranscriptDelta


class Timed:
    """Blocks of sound float32 [n] from `start_s` on. `end_s` is the end of those that were read."""

    def __init__(self, blocks: Iterable[np.ndarray], start_s: float, rate: int):
        self._blocks, self._rate, self.start_s, self.end_s = blocks, rate, start_s, start_s

    def __iter__(self) -> Iterator[np.ndarray]:
        for block in self._blocks:
            self.end_s += len(block) / self._rate
            yield block


def print_words(
    deltas: Iterator[TranscriptDelta],
    arguments: argparse.Namespace,
    sound: Timed,
    has_words: bool = True,
) -> bool:
    """Prints text as it arrives, or a line for each word. Returns whether there is text.

    With --turns, the deltas are those of a turn, `sound`, which becomes one line. Without words, json has
    lines of text.
    """
    prints_text = arguments.format == "text" and not arguments.timestamps
    has_text = False
    for delta in _whole(deltas, sound) if arguments.turns else deltas:
        if prints_text:
            print(delta.text if has_text else delta.text.lstrip(), end="", flush=True)
        has_text = has_text or bool(delta.text.strip())
        if prints_text:
            continue
        if not (delta.words or has_words) and delta.text.strip():
            print(json.dumps({"text": delta.text.strip()}, ensure_ascii=False), flush=True)
        for word in delta.words:
            is_json, name = arguments.format == "json", "text" if arguments.turns else "word"
            print(as_json_line(word, name) if is_json else as_text_line(word), flush=True)
    if prints_text and (has_text or not arguments.turns):
        print(flush=True)
    return has_text


def print_cues(deltas: Iterator[TranscriptDelta], style: str, start_s: float, numbers: Iterator[int]) -> bool:
    """Prints each caption when it is complete. Returns whether there is one."""
    words = (
        Word(word.text, start_s + word.start, start_s + word.end) for delta in deltas for word in delta.words
    )
    has_text = False
    for cue in cues(words):
        has_text = True
        print(srt_cue(next(numbers), cue) if style == "srt" else vtt_cue(cue), flush=True)
    return has_text


def _whole(deltas: Iterator[TranscriptDelta], sound: Timed) -> Iterator[TranscriptDelta]:
    """One delta for a turn, with all its text as one word, from its first word to its last if it has any."""
    found = list(deltas)
    text, words = (
        "".join(each.text for each in found).strip(),
        [word for each in found for word in each.words],
    )
    if words:
        yield TranscriptDelta(
            text, [Word(text, sound.start_s + words[0].start, sound.start_s + words[-1].end)]
        )
    elif text:
        yield TranscriptDelta(text, [Word(text, round(sound.start_s, 3), round(sound.end_s, 3))])


@contextmanager
def first_interruption(end: Callable[[], None]) -> Iterator[None]:
    """Calls `end` on the first SIGINT or SIGTERM; another one raises KeyboardInterrupt."""

    def handle(number: int, frame: object) -> None:
        end()
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
