"""Decodes a recording with PyAV. `media.MediaFile` runs this file in a process of its own.

    python media_decoder.py < RECORDING

The recording is a file, which may have video. It is read from its start. Standard output gets a line of JSON
with rate, channels and seconds (null if unknown), and then the samples of the first audio track: float32,
interleaved. Exit code 3 means that standard error has one line: what is wrong with the recording.
"""

import json
import logging
import re
import resource
import signal
import sys
from contextlib import suppress
from io import BufferedReader, FileIO
from typing import Any, NoReturn

FAULTY = 3  # exit code
# containers that name no other file
FORMATS = {"format_whitelist": "aac,ac3,aiff,amr,asf,avi,caf,flv,matroska,mov,mp3,mpeg,mpegts,ogg,wav,wv"}
STALLED_S, CPU_S = 30, 1800  # seconds without a sample, and of the whole work
MEMORY_BYTES = 2**30  # of addresses; FFmpeg itself takes 150 MB
MAX_LOST = 2  # packets that cannot be decoded, as at the cut of a radio programme
CUT = re.compile(r"ended prematurely|partial file|Packet corrupt|incomplete frame")  # warnings of demuxers
ESTIMATE = "Estimating duration"


class _Source(BufferedReader):
    """FFmpeg seeks to places before the start of some damaged files, or far behind the end of the disk."""

    def seek(self, offset: int, whence: int = 0) -> int:
        with suppress(OSError, ValueError):
            return super().seek(offset, whence)
        return super().seek(0, 0 if offset < 0 else 2)  # a start in place of the end would be read for ever


class _Warnings(logging.Handler):
    """What FFmpeg says while it reads."""

    is_cut_off = has_estimate = False

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.is_cut_off = self.is_cut_off or bool(CUT.search(message))
        self.has_estimate = self.has_estimate or ESTIMATE in message


class _Output:
    """Samples of one rate and layout, that of the first frame."""

    resampler: Any = None
    source: object = None  # format, layout and rate of the last frame

    def __init__(self, seconds: float | None):
        self._seconds = seconds

    def write(self, frame: Any) -> None:
        import av

        source = frame.format.name, frame.layout.name, frame.sample_rate
        if self.resampler is None:
            header = frame.sample_rate, frame.layout.nb_channels, self._seconds
            self._send(json.dumps(header).encode() + b"\n")
            self._layout, self._rate = frame.layout, frame.sample_rate
        if source != self.source:
            self.source, self.resampler = source, av.AudioResampler("flt", self._layout, self._rate)
        for each in self.resampler.resample(frame):
            self._send(bytes(each.planes[0])[: each.samples * each.layout.nb_channels * 4])

    def _send(self, content: bytes) -> None:
        signal.alarm(0)  # the parent may wait
        sys.stdout.buffer.write(content)
        signal.alarm(STALLED_S)


def main() -> None:
    import av
    import av.logging
    import av.subtitles.codeccontext  # all modules are imported before the limits
    import av.subtitles.stream
    import av.video.stream

    warnings = _Warnings()
    logging.getLogger("libav").addHandler(warnings)
    logging.getLogger("libav").propagate = False
    av.logging.set_level(av.logging.WARNING)
    av.logging.set_skip_repeated(False)
    _limit()
    source = _Source(FileIO(0, closefd=False))
    source.seek(0)
    try:
        container: Any = av.open(source, container_options=FORMATS, metadata_errors="replace")
    except av.FFmpegError:
        _fail("damaged or truncated")
    if not container.streams.audio:
        _fail("without an audio track")
    stream = container.streams.audio[0]
    length = stream.duration * stream.time_base if stream.duration else (container.duration or 0) / 1e6
    output = _Output(None if warnings.has_estimate or not length else float(length))
    lost, is_last_lost, sizes = 0, False, list[int]()  # bytes of packets
    try:
        for packet in container.demux(stream):
            if packet.size:
                sizes.append(packet.size)
            try:
                for frame in packet.decode():
                    output.write(frame)
                is_last_lost = is_last_lost and not packet.size
            except av.FFmpegError:
                lost, is_last_lost = lost + 1, True
    except (av.FFmpegError, IndexError):  # PyAV expects no track that begins later
        warnings.is_cut_off = True
    if output.resampler is None:
        _fail("damaged, truncated or empty")
    sys.stdout.buffer.flush()
    ends_early = stream.codec.canonical_name in ("mp2", "mp3") and _ends_within_frame(sizes)
    if warnings.is_cut_off or is_last_lost or ends_early:
        _fail("truncated")
    if lost > MAX_LOST:
        _fail("damaged")


def _ends_within_frame(sizes: list[int]) -> bool:
    """Whether the last frame is shorter than the others, which have a constant bit rate."""
    *others, last = sizes
    return bool(others) and last < min(others) and max(others) - min(others) <= 1


def _limit() -> None:
    """Limits time and memory. From now on the process can open no file, and no connection."""
    limits = {"AS": MEMORY_BYTES, "CPU": CPU_S, "NOFILE": 0, "FSIZE": 0, "CORE": 0}
    for name, value in limits.items():
        with suppress(ValueError, OSError):  # not every system has each
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    signal.alarm(STALLED_S)


def _fail(reason: str) -> NoReturn:
    print(reason, file=sys.stderr)
    sys.exit(FAULTY)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
