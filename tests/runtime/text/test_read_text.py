"""Text of a file or a pipe."""

import io

import pytest

from voxport.bundle.errors import UsageError
from voxport.runtime.text.preparation import read_text

TEXT = "Grüße 😀, 世界."


class Slow(io.BytesIO):
    """A pipe that has one byte at a time."""

    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(1)


@pytest.mark.parametrize("source", [io.BytesIO, Slow])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"])
def test_text_is_utf_8_or_has_a_byte_order_mark(encoding: str, source: type[io.BytesIO]) -> None:
    content = (("\ufeff" if "16" in encoding else "") + TEXT).encode(encoding)
    assert "".join(read_text(source(content), "stdin")) == TEXT


@pytest.mark.parametrize("content", [b"", b"a"])
def test_a_short_text_is_whole(content: bytes) -> None:
    assert "".join(read_text(io.BytesIO(content), "stdin")) == content.decode()


def test_utf_16_that_ends_early_is_refused() -> None:
    with pytest.raises(UsageError, match="ends in the middle of a character at byte 4; expected UTF-8"):
        list(read_text(io.BytesIO("\ufeffab".encode("utf-16-le")[:-1]), "a.txt"))
