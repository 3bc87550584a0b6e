"""Containers of sound: what a file is by its content, and what its header says of its length."""

import mmap
import re
from io import SEEK_CUR, SEEK_END
from typing import IO

HEAD_BYTES = 2**16  # examined part of a file
MAX_FRAME_BYTES = 3000  # more than a frame of MPEG audio has
CHUNK = rb"[A-Za-z ][A-Za-z0-9 ]{3}"  # name of a part of a WAV
ID3 = rb"ID3...(....)"  # a tag, and its size in four times 7 bits
MPEG_FRAME = rb"\xff[\xe2-\xe5\xf2-\xf5\xfa-\xfd][\x10-\xeb]"  # header of a frame of layer II or III
XING = rb"(?:Xing|Info)\0\0\0(.)(....)(....)"  # flags, then the number of frames, then the number of bytes
HAS_FRAMES, HAS_BYTES = 1, 2  # flags
OGG_HEADER = 23  # bytes of a page between its mark and the table of its segments
MAX_PAGE_BYTES = 4 + OGG_HEADER + 255 + 255 * 255
SLACK_BYTES = 64  # encoders count the bytes of headers differently
MP3, OGG = "MP3", "Ogg, such as Opus"
CONTAINERS = {  # what begins a file
    rb".{4}ftyp(3g|kdd)": "3GP",
    rb".{4}(ftyp|moov|moof|mdat|wide|free|skip|styp)": "MP4, M4A or MOV",
    rb"\x1a\x45\xdf\xa3": "WebM or Matroska",
    rb"#!AMR": "AMR",
    rb"\xff[\xf0\xf1\xf8\xf9]": "ADTS AAC",
    rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "WMA or another ASF file",
    rb"OggS": OGG,
    rb"RIFF.{4}AVI ": "AVI",
    rb"RIFF|RIFX|RF64": "WAV",
    rb"FORM": "AIFF",
    rb"fLaC": "FLAC",
    rb"caff": "CAF",
    rb"\x00\x00\x01\xba|\x47.{187}\x47": "MPEG video",
}


def head_of(file: IO[bytes]) -> bytes:
    """The first bytes behind an ID3 tag."""
    file.seek(0, SEEK_END)  # clears the buffer: a decoder has moved the position in the file
    file.seek(_tag_bytes(file))
    head = file.read(HEAD_BYTES)
    file.seek(0)
    return head


def _tag_bytes(file: IO[bytes]) -> int:
    file.seek(0)
    if not (tag := re.match(ID3, file.read(10), re.DOTALL)):
        return 0
    size: bytes = tag[1]
    return tag.end() + sum((byte & 0x7F) << shift for byte, shift in zip(size, (21, 14, 7, 0), strict=True))


def container_of(head: bytes) -> str | None:
    """Names the container of a file by what `head_of` returns; None if it is unknown."""
    matching = (name for start, name in CONTAINERS.items() if re.match(start, head, re.DOTALL))
    return next(matching, MP3 if _has_mpeg_frames(head) else None)


def _has_mpeg_frames(head: bytes) -> bool:
    """Whether the bytes hold frames of MP3 or MP2, even if other bytes come before them."""
    return len(re.findall(MPEG_FRAME, head)) >= max(3, len(head) // MAX_FRAME_BYTES)


def rate_of(head: bytes) -> int | None:
    """Samples per second by the header of a WAV, a FLAC or an AU; None for other files."""
    if head[:4] in (b"RIFF", b"RIFX", b"RF64") and (at := head.find(b"fmt ")) > 0:
        return int.from_bytes(head[at + 12 : at + 16], "big" if head[:4] == b"RIFX" else "little")
    if head[:4] == b".snd":
        return int.from_bytes(head[16:20], "big")
    return int.from_bytes(head[18:21], "big") >> 4 if head[:4] == b"fLaC" else None


def is_cut_off(file: IO[bytes]) -> bool:
    """Whether an Ogg ends within a page, or an MP3 before the end that its header says."""
    head, end = head_of(file), file.seek(0, SEEK_END)
    if head.startswith(b"OggS"):
        file.seek(-min(end, MAX_PAGE_BYTES), SEEK_END)
        page = file.read().rpartition(b"OggS")[2]
        segments = page[OGG_HEADER - 1 : OGG_HEADER]
        table = page[OGG_HEADER:][: sum(segments)]
        return not segments or len(page) < OGG_HEADER + sum(segments) + sum(table)
    found = container_of(head) == MP3 and re.search(XING, head[:MAX_FRAME_BYTES], re.DOTALL)
    if not found or not found[1][0] & HAS_BYTES:
        return False
    size = found[3] if found[1][0] & HAS_FRAMES else found[2]
    return int.from_bytes(size, "big") > end - _tag_bytes(file) + SLACK_BYTES


def is_chained(file: IO[bytes]) -> bool:
    """Whether an Ogg has streams one behind another, of which libsndfile reads the first."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        page = re.search(rb"OggS\0[\0\1\4\5]", content)  # not the first of a stream
        return page is not None and content.find(b"OggS\0\2", page.end()) > 0


def wav_lengths(file: IO[bytes]) -> tuple[int, int]:
    """Bytes of samples by the header of a WAV, and bytes behind them that belong to no chunk.

    Both are 0 for other files.
    """
    end = file.seek(0, SEEK_END)
    file.seek(0)
    name, size, head = b"", 0, file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return 0, 0
    while name != b"data" and file.tell() < min(end, HEAD_BYTES):
        name, size = file.read(4), int.from_bytes(file.read(4), "little")
        file.seek(size + size % 2, SEEK_CUR)
    behind = end - file.tell()
    if name != b"data" or behind <= 0:
        return 0, 0
    is_chunk = re.match(CHUNK, file.read(4)) and int.from_bytes(file.read(4), "little") <= behind - 8
    return size, 0 if is_chunk else behind
