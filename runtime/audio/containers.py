"""What a file is by its content, if libsndfile does not read it. WAV files without a length."""

import re
from io import SEEK_CUR, SEEK_END
from typing import IO

HEAD_BYTES = 2**16  # examined part of a file
KINDS = {  # what begins a file: what the file is
    rb".{4}ftyp(3g|kdd)": "3GP",
    rb".{4}(ftyp|moov|mdat|wide|free)": "MP4, M4A or QuickTime (AAC or ALAC)",
    rb"\x1a\x45\xdf\xa3": "WebM or Matroska",
    rb"#!AMR": "AMR",
    rb"ADIF|\xff[\xf0\xf1\xf8\xf9]": "ADTS AAC",
    rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "WMA or another ASF file",
    rb"OggS": "Ogg without Vorbis, Opus or FLAC",
    rb"RIFF.{4}AVI ": "AVI",
    rb"RIFF|RIFX|RF64|FORM|fLaC": "a damaged WAV, AIFF or FLAC, or one with an unknown codec",
    rb"\x00\x00\x01\xba|\x47.{187}\x47": "MPEG video",
}
ID3 = rb"ID3...(....)"  # a tag, and its size in four times 7 bits
MPEG_FRAME = rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\xeb]"  # header of a frame of layer III
MAX_FRAME_BYTES = 3000  # more than a frame has
CHUNK = rb"[A-Za-z ][A-Za-z0-9 ]{3}"  # name of a part of a WAV
TO_THE_END = b"\x08\0\0\0"  # with this size of a WAV libsndfile reads data of the size 0 to the end


def kind_of(head: bytes) -> str | None:
    """What the first bytes say that a file is; None if they are unknown."""
    if tag := re.match(ID3, head, re.DOTALL):
        size = sum((byte & 0x7F) << shift for byte, shift in zip(tag[1], (21, 14, 7, 0), strict=True))
        head = head[tag.end() + size :]
    return next((kind for start, kind in KINDS.items() if re.match(start, head, re.DOTALL)), None)


def rate_of(head: bytes) -> int | None:
    """Samples per second by the header of a WAV, a FLAC or an AU; None for other files."""
    if head[:4] in (b"RIFF", b"RIFX", b"RF64") and (at := head.find(b"fmt ")) > 0:
        return int.from_bytes(head[at + 12 : at + 16], "big" if head[:4] == b"RIFX" else "little")
    if head[:4] == b".snd":
        return int.from_bytes(head[16:20], "big")
    return int.from_bytes(head[18:21], "big") >> 4 if head[:4] == b"fLaC" else None


def has_mpeg_frames(head: bytes) -> bool:
    """Whether the bytes hold frames of MP3, even if other bytes come before them."""
    return len(re.findall(MPEG_FRAME, head)) >= max(3, len(head) // MAX_FRAME_BYTES)


def length_repair(file: IO[bytes]) -> tuple[int, bytes] | None:
    """Where a header has no length, and what to write there, so that libsndfile reads to the end."""
    size, behind = wav_lengths(file)
    return (4, TO_THE_END) if not size and behind else None


def wav_lengths(file: IO[bytes]) -> tuple[int, int]:
    """Bytes of samples by the header of a WAV, and bytes behind them that are no chunk; else zeros."""
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
