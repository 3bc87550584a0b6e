"""The text that `align` reads."""

import io
import sys
from pathlib import Path

import pytest
from support.commands import error_line

from voxport.runtime.__main__ import main as runtime


def test_a_text_that_is_not_utf8_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on stdin, where Python would take any bytes."""
    (tmp_path / "text").write_bytes(b"caf\xe9")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), errors="surrogateescape"))
    for text in (str(tmp_path / "text"), "-"):
        assert runtime(["align", "a.wav", "--text", text, "--bundle", str(tmp_path)]) == 2
        assert "is not UTF-8; expected a text file" in error_line(capsys)
