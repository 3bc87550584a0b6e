"""Subtitles made of words with times."""

from voxport.runtime.audio.captions import Word, as_srt, as_vtt, clock, cues

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
        as_srt(WORDS[:3])
        == "1\n00:00:00,000 --> 00:00:00,800\nHello there.\n\n2\n00:00:01,000 --> 00:00:01,200\n<b>\n"
    )
    assert as_vtt(WORDS[2:3]) == "WEBVTT\n\n00:00:01.000 --> 00:00:01.200\n&lt;b&gt;\n"
    assert clock(3723.9996) == "01:02:04.000"
    assert as_srt([Word("a\n\nb", 0.0, 1.0)]).splitlines()[2:] == ["a b"]
    assert as_srt([]) == "" and as_vtt([]) == "WEBVTT\n\n"
