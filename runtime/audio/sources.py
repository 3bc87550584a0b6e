"""Sound to be transcribed: recordings in any format, and live sound from a pipe. Both come in blocks."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import RawIOBase
from pathlib import Path
from queue import Empty, Full, Queue

import numpy as np
import soxr

from voxport.bundle.bounds import MAX_RATE, MIN_RATE
from voxport.bundle.errors import UsageError, VoxportError
from voxport.runtime.audio.containers import is_cut_off
from voxport.runtime.audio.files import SAMPLE_BYTES, from_pcm16
from voxport.runtime.audio.gain import MIN_HIGH_PART, SpeechLevel, band_powers, decibels
from voxport.runtime.audio.media import DamagedSound
from voxport.runtime.audio.mixing import AHEAD, Mixer
from voxport.runtime.audio.opening import open_audio, source_of, warn_of_wrong_length, wrong_rate

BLOCK_S = 1.0  # seconds of a file in memory at a time, and of audio lost where a file is damaged
MAX_BLOCK_VALUES = 2**24  # 64 MB
MIN_CLIPPED = 0.99  # absolute value from which a sample counts as clipped; 8-bit audio ends at 0.992
MAX_CLIPPED_FRACTION = 0.001  # fraction of clipped samples without a warning
LIVE_BLOCK_S = 0.02  # seconds of a block; a token of 80 ms would wait for the rest of a longer one
POLL_S = 0.2  # seconds after which `blocks` checks whether the reading thread has ended
WARNING_INTERVAL_S = 1.0  # between warnings that the source waits
QUALITY = "HQ"  # the setting of soxr in the published front end
# audio files begin with them, raw samples do not
FILE_HEADERS = (b"RIFF", b"fLaC", b"OggS", b"ID3", b"FORM", b"\x1a\x45\xdf\xa3")
log = logging.getLogger(__name__)


class Converter:
    """Converts blocks of a stream to mono and another rate. The sizes of the blocks change no sample."""

    def __init__(self, rate: int, new_rate: int, channels: int = 1, mixer: Mixer | None = None):
        self._channels, self._mixer = channels, mixer or Mixer(rate, channels)
        self._stream = (
            soxr.ResampleStream(rate, new_rate, 1, "float32", QUALITY) if rate != new_rate else None
        )

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """samples float32 [n] or [n, channels] -> the samples that became complete, float32 [m]."""
        return self._resampled(self._mixer.feed(samples.reshape(-1, self._channels)))

    def finish(self) -> np.ndarray:
        """The remaining samples after the last block, float32 [m]."""
        return self._resampled(self._mixer.finish(), is_last=True)

    def _resampled(self, samples: np.ndarray, is_last: bool = False) -> np.ndarray:
        return samples if self._stream is None else self._stream.resample_chunk(samples, last=is_last)


class Recording:
    """An audio file, or the first audio track of a video, as mono blocks of a given sample rate.

    It may have any sample rate, sample width and number of channels. The path `-` is a whole file on stdin.
    Memory grows by 2 MB for an hour. Truncated, damaged, clipped, overscaled and narrow-band recordings,
    and channels that cancel, log a warning.
    """

    def __init__(self, path: Path, rate: int, channel: int | None = None):
        """`channel` counts from 1; None mixes all.

        Raises UsageError if there is no such file or channel, it is not audio, or a pipe is longer than the
        limit.
        """
        self._name, self._rate = "stdin" if str(path) == "-" else str(path), rate
        self._source = source_of(path)
        self._is_cut_off = is_cut_off(self._source)
        self._file = open_audio(self._source, self._name)
        if self._file.seconds == 0:
            found = "truncated before its first sample" if self._is_cut_off else "has no samples"
            raise UsageError(f"{self._name}: {found}; expected a file of audio")
        if not MIN_RATE <= self._file.samplerate <= MAX_RATE:
            raise wrong_rate(self._name, self._file.samplerate)
        if channel is not None and not 1 <= channel <= self._file.channels:
            has = f"{self._name} has {self._file.channels}"
            raise UsageError(f"channel {channel}: {has}; the first is 1", field="channel")
        self._channel, self._channels = channel, self._file.channels if channel is None else 1
        # frames in memory at a time: fewer if there are hundreds of channels
        self._block = min(int(BLOCK_S * self._file.samplerate), MAX_BLOCK_VALUES // self._file.channels)
        if path.is_file():
            warn_of_wrong_length(path)
        self.file_rate: int = self._file.samplerate
        self.seconds = 0.0  # read so far
        self.damage: str | None = None  # where it ends too early

    @property
    def length_s(self) -> float | None:
        """Seconds of sound by the header; None if the header has no length."""
        return self._file.seconds

    def check_whole(self, advice: str = "record or send it again") -> None:
        """Raises UsageError, with `advice`, if `peak_dbfs` found that the recording is truncated or damaged.

        A part of a text would look like all of it.
        """
        if self.damage:
            raise UsageError(f"{self._name}: {self.damage}; {advice}")

    def peak_dbfs(self, check: Callable[[float], object] = lambda seconds: None) -> float:
        """The peak of the speech in the mixed channels. Reads the file up to its first damage, and rewinds.

        `check` takes the seconds so far after each block; what it raises stops the reading. Raises UsageError
        on a sample that is not finite, and if a damaged file has no other samples.
        """
        mixer = Mixer(self._file.samplerate, self._channels, AHEAD, name=None)
        powers, frames = np.zeros(2), 0
        self.level = SpeechLevel(self._file.samplerate)
        while len(block := self._read_block(frames)):
            frames += len(block)
            self.level.add(mono := mixer.feed(block))
            powers += band_powers(mono, self._file.samplerate)
            check(frames / self._file.samplerate)
        self.level.add(mixer.finish())
        if self.damage and not frames:
            raise UsageError(f"{self._name}: {self.damage}, no sample can be read; record or send it again")
        self._file.close()
        self._file = open_audio(self._source, self._name)  # seeking is not exact in each format
        if powers[1] < MIN_HIGH_PART * powers[0]:
            log.warning("%s: has no sound above 4 kHz, as of a telephone; words may be wrong", self._name)
        return decibels(self.level.peak())

    def blocks(self) -> Iterator[np.ndarray]:
        """Blocks float32 [n] in [-1, 1] at `rate`. Raises UsageError on a sample that is not finite."""
        file = self._file
        mixer = Mixer(file.samplerate, self._channels, AHEAD, self._name)
        converter = Converter(file.samplerate, self._rate, self._channels, mixer)
        frames, clipped, peak = 0, 0, 0.0  # samples per channel, samples of all channels, largest one
        while len(block := self._read_block(frames)):
            frames += len(block)
            clipped += int((np.abs(block) >= MIN_CLIPPED).sum())
            peak = max(peak, float(np.abs(block).max()))
            self.seconds = frames / file.samplerate
            yield converter.feed(block)
        yield converter.finish()
        fraction = clipped / max(1, frames * self._channels)
        if self.damage:
            log.warning("%s: %s; the text is of the part before", self._name, self.damage)
        file.close()
        self._source.close()
        if peak > 1:
            log.warning("%s: samples up to %.3g, expected at most 1; scale the recording", self._name, peak)
        elif fraction > MAX_CLIPPED_FRACTION:
            message = "%s: clipped: %.1f %% of the samples are at full scale; words may be missing"
            log.warning(message, self._name, 100 * fraction)

    def _read_block(self, position: int) -> np.ndarray:
        """The next block float32 [n, channels], from the frame `position` on; [0, channels] at the end.

        The end is also where the file is damaged or truncated. Raises UsageError on a sample that is not
        finite.
        """
        try:
            block = self._file.read_block(self._block)
            if not len(block) and self._is_cut_off:
                raise DamagedSound("truncated")
        except DamagedSound as error:
            self.damage = f"{error} after {position / self._file.samplerate:.1f} s"
            return np.zeros((0, self._channels), np.float32)
        if self._channel is not None:
            block = block[:, self._channel - 1 : self._channel]
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            at = (position + int(np.argmin(finite))) / self._file.samplerate
            raise UsageError(
                f"{self._name}: the sample at {at:.3f} s is not a finite number; repair the recording"
            )
        return block


class LiveSource:
    """Raw 16-bit little-endian samples from a pipe.

    A thread reads blocks of 20 ms into a queue of `queue_s` seconds. While the queue is full, the thread does
    not read, so the pipe waits, and a warning is logged every second.
    """

    queue_s = 10.0

    def __init__(self, source: RawIOBase, rate: int, channels: int, new_rate: int):
        """`source` is unbuffered: `read(n)` returns the available bytes, at most n, and b"" at the end."""
        self._source, self._rate, self._new_rate = source, rate, new_rate
        self._channels, self._frame_bytes = channels, channels * SAMPLE_BYTES
        self._block_bytes = max(1, round(rate * LIVE_BLOCK_S)) * self._frame_bytes
        self._queue: Queue[bytes] = Queue(round(self.queue_s / LIVE_BLOCK_S))
        self._ended = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._read, name="voxport-live", daemon=True)

    def end(self) -> None:
        """Stops reading. `blocks` still returns what is in the queue."""
        self._ended.set()

    def blocks(self) -> Iterator[np.ndarray]:
        """Mono blocks float32 [n] in [-1, 1] at `new_rate`, as they arrive.

        Raises VoxportError if the source cannot be read, UsageError if it is an audio file.
        """
        converter, has_sound = Converter(self._rate, self._new_rate, self._channels), False
        self._thread.start()
        try:
            while (block := self._next_block()) is not None:
                if not has_sound and block.startswith(FILE_HEADERS):
                    raise UsageError(
                        "stdin: an audio file, expected raw 16-bit samples; "
                        "transcribe it as a recording, or convert it with ffmpeg -f s16le"
                    )
                has_sound = True
                yield converter.feed(from_pcm16(block).reshape(-1, self._channels))
            if len(rest := converter.finish()):
                yield rest
        finally:
            self.end()
        if self._error:
            raise VoxportError(f"stdin: cannot be read: {self._error.strerror or self._error}")
        if not has_sound:
            log.warning("stdin: ended without any sound")

    def _next_block(self) -> bytes | None:
        """Waits for a block. None after the last one."""
        while True:
            is_last = self._ended.is_set()  # before the queue is examined: the thread may add one more block
            with suppress(Empty):
                return self._queue.get(timeout=0 if is_last else POLL_S)
            if is_last:
                return None

    def _read(self) -> None:
        rest = b""
        try:
            while (
                not self._ended.is_set()
                and (piece := self._source.read(self._block_bytes - len(rest))) != b""
            ):
                if piece is None:  # a non-blocking pipe without data
                    self._ended.wait(LIVE_BLOCK_S)
                    continue
                rest += piece
                if len(rest) == self._block_bytes:
                    self._put(rest)
                    rest = b""
            partial = len(rest) % self._frame_bytes
            if len(rest) > partial:
                self._put(rest[: len(rest) - partial])
            if partial:
                log.warning("stdin: ended within a sample; bytes left out: %d", partial)
        except OSError as error:
            self._error = error
        finally:
            self.end()

    def _put(self, block: bytes) -> None:
        """Appends a block to the queue. Waits while the queue is full, unless reading ends."""
        while True:
            with suppress(Full):
                return self._queue.put(block, timeout=WARNING_INTERVAL_S)
            if self._ended.is_set():
                return None
            log.warning("sound arrives faster than it is transcribed: the source waits")
