"""What a file is by its content, if libsndfile does not read it. WAV files without a length."""

import re
from io import SEEK_END
from typing import IO

HEAD_BYTES = 2**16  # that are examined
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
    rb"FLV": "Flash video",
    rb"\x02?#!SILK": "SILK",
    rb"wvpk": "WavPack",
    rb"MAC ": "Monkey's Audio",
    rb"TTA[12]": "True Audio",
    rb"DSD |FRM8": "DSD",
    rb"\x0b\x77": "AC-3",
    rb"\x00\x00\x01\xba|\x47.{187}\x47": "MPEG video",
}
ID3 = rb"ID3...(....)"  # a tag, and its size in four times 7 bits
MPEG_FRAME = rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\xeb]"  # header of a frame of layer III
MAX_FRAME_BYTES = 3000  # more than a frame has
NO_DATA = rb"RIFF....WAVE.*?data\0\0\0\0(?P<next>(?P<name>[A-Za-z ][A-Za-z0-9 ]{3})?(?P<size>.{4})?)"


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


def lacks_length(file: IO[bytes]) -> bool:
    """Whether a WAV file says that it has no data, although bytes follow that are no chunk."""
    size = file.seek(0, SEEK_END)
    file.seek(0)
    found = re.match(NO_DATA, file.read(HEAD_BYTES), re.DOTALL)
    file.seek(0)
    if not found or size == found.start("next"):
        return False
    chunk = int.from_bytes(found["size"] or b"", "little")
    return found["name"] is None or found.end() + chunk > size
