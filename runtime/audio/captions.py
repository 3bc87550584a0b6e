"""Words with times, as text, subtitles or JSON."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape

import regex
from pydantic import JsonValue

LEAST_WORD_S = 0.01  # of a word in a caption, as no program shows one without length
MAX_CUE_S = 6.0
MAX_PAUSE_S = 0.8  # a longer pause ends a cue
MAX_CUE_CHARACTERS = 84  # two lines of 42
_WIDE = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\u3000-\u303f\uff00-\uff64]"  # between them no blank
_BLANKS = regex.compile(rf"(?<={_WIDE}) (?={_WIDE})")
SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！")  # noqa: RUF001  marks of wide scripts


@dataclass(frozen=True)
class Word:
    """A word with its start and end, in seconds from the beginning of the audio."""

    text: str
    start: float
    end: float


def cues(words: Iterable[Word]) -> Iterator[Word]:
    """Groups words into cues. A cue ends with a sentence, before a pause, or if it would be too long."""
    cue: list[Word] = []
    for word in words:
        if cue and (
            word.start - cue[-1].end > MAX_PAUSE_S
            or word.end - cue[0].start > MAX_CUE_S
            or sum(len(other.text) + 1 for other in cue) + len(word.text) > MAX_CUE_CHARACTERS
        ):
            yield _joined(cue)
            cue = []
        cue.append(word)
        if word.text.endswith(SENTENCE_ENDS):  # without waiting for the next word, which live may be late
            yield _joined(cue)
            cue = []
    if cue:
        yield _joined(cue)


def _joined(cue: list[Word]) -> Word:
    text = " ".join(" ".join(word.text for word in cue).split())  # a blank line would end a cue
    return Word(_BLANKS.sub("", text), cue[0].start, cue[-1].end)


def clock(seconds: float, decimal_mark: str = ".") -> str:
    """`00:01:02.345`."""
    minutes, rest = divmod(round(seconds * 1000), 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{decimal_mark}{rest % 1000:03}"


def as_lines(words: Iterable[Word]) -> str:
    """One line per cue: `[start - end] text`."""
    return "".join(f"[{clock(cue.start)} - {clock(cue.end)}] {cue.text}\n" for cue in cues(words))


def within(words: Iterable[Word], seconds: float) -> list[Word]:
    """The words one after another, each with a length, up to the end of the sound.

    An aligner may give times behind the end, and words without length.
    """
    found, end = list(words), 0.0
    least = min(LEAST_WORD_S, seconds / max(1, len(found)))
    for index, word in enumerate(found):
        start = max(word.start, end)
        end = max(word.end, start + least)
        found[index] = Word(word.text, start, end)
    last = seconds
    for index, word in reversed(list(enumerate(found))):
        end = min(word.end, last)
        last = max(0.0, min(word.start, end - least))
        found[index] = Word(word.text, last, end)
    return found


def as_srt(words: Iterable[Word], seconds: float) -> str:
    """SubRip subtitles of `seconds` of sound."""
    return "\n".join(srt_cue(index, cue) for index, cue in enumerate(cues(within(words, seconds)), 1))


def srt_cue(number: int, cue: Word) -> str:
    return f"{number}\n{clock(cue.start, ',')} --> {clock(cue.end, ',')}\n{cue.text}\n"


def as_vtt(words: Iterable[Word], seconds: float) -> str:
    """WebVTT subtitles of `seconds` of sound."""
    return "WEBVTT\n\n" + "\n".join(map(vtt_cue, cues(within(words, seconds))))


def vtt_cue(cue: Word) -> str:
    return f"{clock(cue.start)} --> {clock(cue.end)}\n{escape(cue.text, quote=False)}\n"


def as_textgrid(words: Iterable[Word], seconds: float) -> str:
    """A TextGrid of Praat with one tier, which has an interval for each word and each gap."""
    intervals, end = list[Word](), 0.0
    for word in within(words, seconds):
        intervals += [Word("", end, word.start)] if word.start > end else []
        intervals.append(word)
        end = word.end
    intervals += [Word("", end, seconds)] if end < seconds else []
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {seconds:.9g}"]
    lines += ["tiers? <exists>", "size = 1", "item []:", "    item [1]:", '        class = "IntervalTier"']
    lines += ['        name = "words"', "        xmin = 0", f"        xmax = {seconds:.9g}"]
    lines += [f"        intervals: size = {len(intervals)}"]
    for number, each in enumerate(intervals, 1):
        text = each.text.replace('"', '""')
        lines += [f"        intervals [{number}]:", f"            xmin = {each.start:.9g}"]
        lines += [f"            xmax = {each.end:.9g}", f'            text = "{text}"']
    return "\n".join(lines) + "\n"


CAPTIONS: dict[str, Callable[[Iterable[Word], float], str]] = {  # formats of words with times
    "srt": as_srt,
    "vtt": as_vtt,
    "textgrid": as_textgrid,
}


def as_json(text: str, words: Iterable[Word] | None, **fields: JsonValue) -> str:
    """A JSON object with the text, `fields`, and the words unless they are None."""
    content = {"text": text, **fields}
    if words is not None:
        content["words"] = [timed_fields(word) for word in words]
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def as_json_line(word: Word, name: str = "word") -> str:
    """One word as a line without its end: a JSON object. `name` is the key of its text."""
    return json.dumps(timed_fields(word, name), ensure_ascii=False)


def as_text_line(word: Word) -> str:
    """One word as a line without its end: `[start] word`."""
    return f"[{clock(word.start)}] {word.text}"


def timed_fields(word: Word, name: str = "word") -> dict[str, JsonValue]:
    """The JSON object of a word. `name` is the key of its text, which differs for cues."""
    return {name: word.text, "start": round(word.start, 3), "end": round(word.end, 3)}
