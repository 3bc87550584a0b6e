"""Sentences and recordings of an evaluation, as files and folders have them."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxport.bundle.errors import UsageError
from voxport.export.evaluation.sentences import HELD_OUT, read_sentences


def test_a_text_file_has_a_sentence_per_line(tmp_path: Path) -> None:
    path = tmp_path / "sentences.txt"
    path.write_text("One.\n\n  Two.  \nThree.\n")
    assert [(each.name, each.text) for each in read_sentences(path)] == [
        ("line 1", "One."),
        ("line 3", "Two."),
        ("line 4", "Three."),
    ]
    assert len(read_sentences(path, 2)) == 2


def test_a_folder_has_the_layout_of_librispeech(tmp_path: Path) -> None:
    """Transcripts may be at any depth; the recording lies beside its transcript."""
    inner = tmp_path / "84" / "121123"
    inner.mkdir(parents=True)
    (inner / "84-121123.trans.txt").write_text("84-121123-0000 GO ON\n84-121123-0001 STAY HERE\n")
    soundfile.write(inner / "84-121123-0001.flac", np.zeros(1600), 16000)
    first, second = read_sentences(tmp_path)
    assert (first.text, first.recording) == ("GO ON", None)
    assert second.recording == inner / "84-121123-0001.flac"
    assert len(second.samples(24000)) == 2400
    with pytest.raises(UsageError, match="84-121123-0000: has no recording"):
        first.samples(24000)


def test_the_held_out_sentences_have_recordings() -> None:
    found = read_sentences(HELD_OUT)
    assert len(found) == 100
    assert all(each.recording for each in found)
    assert len({each.text for each in found}) > 95  # few templates have few words


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "holds no sentence; expected one sentence per line"),
        (b"\xff\xfe\x00", "is not UTF-8"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "sentences.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_sentences(path)


def test_a_wrong_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected files \*.trans.txt"):
        read_sentences(tmp_path)
    (tmp_path / "a.trans.txt").write_text("only-an-id\n")
    with pytest.raises(UsageError, match="line 1: 'only-an-id' has no text"):
        read_sentences(tmp_path)
