"""Words with times, as text, subtitles or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

LONGEST_S, GAP_S, WIDTH = (
    6.0,
    0.8,
    84,
)  # of a cue: seconds, silence that ends it, characters (two lines of 42)
ENDS = (".", "?", "!", "…", "。", "？", "！")  # noqa: RUF001  of wide scripts, too


@dataclass(frozen=True)
class Word:
    """A word and when it was heard, in seconds of the recording."""

    text: str
    start: float
    end: float


def cues(words: Iterable[Word]) -> Iterator[Word]:
    """Words put together as long as one reads them at a glance: up to the end of a sentence, a pause, or a full line."""
    line: list[Word] = []
    for word in words:
        if line and (
            line[-1].text.endswith(ENDS)
            or word.start - line[-1].end > GAP_S
            or word.end - line[0].start > LONGEST_S
            or sum(len(other.text) + 1 for other in line) + len(word.text) > WIDTH
        ):
            yield _joined(line)
            line = []
        line.append(word)
    if line:
        yield _joined(line)


def _joined(line: list[Word]) -> Word:
    words = " ".join(word.text for word in line).split()  # a blank line would end a cue
    return Word(" ".join(words), line[0].start, line[-1].end)


def clock(seconds: float, comma: str = ".") -> str:
    """`00:01:02.345`."""
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{comma}{rest % 1000:03}"


def as_lines(words: Iterable[Word]) -> str:
    """A cue on each line, behind its times."""
    return "".join(f"[{clock(cue.start)} - {clock(cue.end)}] {cue.text}\n" for cue in cues(words))


def as_srt(words: Iterable[Word]) -> str:
    return "\n".join(
        f"{index}\n{clock(cue.start, ',')} --> {clock(cue.end, ',')}\n{cue.text}\n"
        for index, cue in enumerate(cues(words), 1)
    )


def as_vtt(words: Iterable[Word]) -> str:
    escaped = (
        (cue, cue.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")) for cue in cues(words)
    )
    return "WEBVTT\n\n" + "\n".join(
        f"{clock(cue.start)} --> {clock(cue.end)}\n{text}\n" for cue, text in escaped
    )


def as_json(text: str, words: Iterable[Word] | None, **facts: Any) -> str:
    timed = {} if words is None else {"words": [_rounded(word) for word in words]}
    return json.dumps({"text": text, **facts, **timed}, ensure_ascii=False, indent=1) + "\n"


def as_word_line(word: Word, is_json: bool) -> str:
    """One word on a line of its own, as live words come."""
    return json.dumps(_rounded(word), ensure_ascii=False) if is_json else f"[{clock(word.start)}] {word.text}"


def _rounded(word: Word) -> dict[str, Any]:
    return {"word": word.text, "start": round(word.start, 3), "end": round(word.end, 3)}
