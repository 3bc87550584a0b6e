"""Subtitles made of words with times."""

import re
from itertools import pairwise

import pytest

from voxport.runtime.audio.captions import CAPTIONS, Word, as_srt, as_vtt, clock, cues

WORDS = [
    Word("Hello", 0.0, 0.4),
    Word("there.", 0.4, 0.8),
    Word("<b>", 1.0, 1.2),
    Word("late", 3.0, 3.2),
    Word("x" * 100, 3.3, 3.4),
    Word("y", 3.5, 11.0),
]


def test_cues_end_with_sentences_pauses_and_lines() -> None:
    assert [cue.text for cue in cues(WORDS)] == ["Hello there.", "<b>", "late", "x" * 100, "y"]
    assert [(cue.start, cue.end) for cue in cues(WORDS)][:2] == [(0.0, 0.8), (1.0, 1.2)]


def test_the_end_of_a_sentence_does_not_wait_for_the_next_word() -> None:
    live = iter(WORDS)
    assert next(cues(live)).text == "Hello there." and next(live).text == "<b>"


def test_subtitles_have_the_syntax_of_their_format() -> None:
    assert (
        as_srt(WORDS[:3], 20)
        == "1\n00:00:00,000 --> 00:00:00,800\nHello there.\n\n2\n00:00:01,000 --> 00:00:01,200\n<b>\n"
    )
    assert as_vtt(WORDS[2:3], 20) == "WEBVTT\n\n00:00:01.000 --> 00:00:01.200\n&lt;b&gt;\n"
    assert clock(3723.9996) == "01:02:04.000"
    assert as_srt([Word("a\n\nb", 0.0, 1.0)], 1).splitlines()[2:] == ["a b"]
    assert as_srt([], 0) == "" and as_vtt([], 0) == "WEBVTT\n\n"


@pytest.mark.parametrize("name", CAPTIONS)
@pytest.mark.parametrize(
    "times",
    [
        [(0.0, 0.4), (0.4, 0.4), (0.4, 0.4), (0.4, 95.2)],
        [(95.2, 95.2), (95.2, 95.2), (95.2, 95.9), (95.9, 95.9)],
        [(3.28, 3.44), (3.44, 3.6), (3.6, 3.6), (3.6, 3.6)],
        [(0.0, 0.0)] * 1000,
    ],
)
def test_captions_have_every_word_with_a_length_and_end_with_the_sound(
    name: str, times: list[tuple[float, float]]
) -> None:
    """Times as an aligner gives them: words without length, and times behind the end of the sound."""
    seconds = 3.3748125
    content = CAPTIONS[name]([Word(f"word{index}", *each) for index, each in enumerate(times)], seconds)
    assert re.findall(r"word\d+", content) == [f"word{index}" for index in range(len(times))]
    if name == "textgrid":
        found = re.findall(r" {12}xmin = (\S+)\n {12}xmax = (\S+)\n", content)
        assert f"size = {len(found)}\n" in content and content.count(f"\nxmax = {seconds}\n") == 1
        edges = [tuple(map(float, pair)) for pair in found]
        assert edges[0][0] == 0 and edges[-1][1] == seconds
        assert all(end == start for (_, end), (start, _) in pairwise(edges))
    else:
        clocks = re.findall(r"00:00:(\S+) --> 00:00:(\S+)", content)
        edges = [tuple(float(each.replace(",", ".")) for each in pair) for pair in clocks]
        assert edges[-1][1] <= seconds + 0.0005  # clocks have milliseconds
    assert all(start < end for start, end in edges)
