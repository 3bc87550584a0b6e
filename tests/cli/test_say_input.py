"""Texts that `say` cannot read are one line with exit code 2, before a bundle is opened."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from voxport.bundle.errors import UsageError
from voxport.runtime.__main__ import main
from voxport.runtime.text.languages import check_language
from voxport.runtime.text.preparation import prepare

SAY = [sys.executable, "-m", "voxport.runtime", "say", "--bundle", "missing"]


def failed(*arguments: str, **options: Any) -> str:
    done = subprocess.run(
        [*SAY, *arguments], stderr=subprocess.PIPE, text=True, timeout=60, check=False, **options
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    return str(done.stderr)


def test_a_closed_stdin_is_named() -> None:
    assert "stdin is closed" in failed("-", "-o", "x.wav", preexec_fn=lambda: os.close(0))


def test_bytes_that_are_not_text_are_named() -> None:
    with subprocess.Popen(["printf", r"\377\377"], stdout=subprocess.PIPE) as source:
        assert "expected UTF-8 text" in failed("-", "-o", "x.wav", stdin=source.stdout)


@pytest.mark.parametrize(
    "name, says", [("missing.txt", "No such file"), (".", "Is a directory"), ("-", "in place of --file")]
)
def test_a_file_that_cannot_be_read_is_named(name: str, says: str) -> None:
    assert says in failed("--file", name, "-o", "x.wav")


def test_samples_are_not_written_to_a_terminal() -> None:
    master, slave = pty.openpty()
    try:
        said = failed("Hello.", "--stream", stdout=slave)
        assert (
            "terminal; pipe them into a player, as in `| aplay -f S16_LE -c 1 -r RATE` with the model's rate"
            in said
        )
    finally:
        os.close(master)
        os.close(slave)


def test_a_language_may_have_a_region() -> None:
    assert check_language("en-US") == "en"
    assert check_language("pt_BR") == "pt"
    assert check_language("German") == "de"
    assert check_language("auto") is None
    with pytest.raises(UsageError, match="auto, an ISO 639 code as in fr, or one of arabic, cantonese"):
        check_language("Klingonese language")


@pytest.mark.parametrize("pieces", [b"hi", [b"hi"], [1], [None]])
def test_pieces_that_are_not_text_are_named(pieces: Any) -> None:
    with pytest.raises(UsageError, match="expected str"):
        list(prepare(pieces, "en", bool))


def test_a_recording_is_not_replaced_by_its_transcript(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"sound")
    (tmp_path / "link.txt").symlink_to(path)
    for output in (path, tmp_path / "link.txt"):
        assert main(["transcribe", str(path), "-o", str(output), "--bundle", "none"]) == 2
        assert "is also read" in capsys.readouterr().err
    assert path.read_bytes() == b"sound"


@pytest.mark.parametrize("command", [["say", "Hi.", "-o", "a.wav"], ["transcribe", "talk.wav"], ["serve"]])
def test_without_the_exporter_a_bundle_is_asked_for(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.wav").write_bytes(b"sound")
    monkeypatch.setattr("voxport.cli.arguments.find_spec", lambda name: None)
    assert main(command) == 2
    assert "--bundle: the embedded model is not installed" in capsys.readouterr().err
