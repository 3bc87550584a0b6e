"""Recordings of browsers and phones, as FFmpeg writes them."""

from fractions import Fraction
from io import BytesIO
from typing import Any

import av
import numpy as np

FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "frag_duration": "500000"}
# name: container, codec, its rate, options of the container
MEDIA: dict[str, tuple[str, str, int, dict[str, str]]] = {
    "webm of Chrome": ("webm", "libopus", 48000, {"live": "1"}),  # no duration, no sizes
    "webm": ("webm", "libopus", 48000, {}),
    "mkv": ("matroska", "aac", 44100, {}),
    "mp4 of Safari": ("mp4", "aac", 48000, FRAGMENTS),
    "m4a": ("ipod", "aac", 44100, {}),
    "m4a with ALAC": ("ipod", "alac", 44100, {}),
    "mov": ("mov", "aac", 44100, {}),
    "3gp": ("3gp", "libopencore_amrnb", 8000, {}),
    "ogg of Firefox": ("ogg", "libopus", 48000, {}),
    "aac": ("adts", "aac", 44100, {}),
    "amr": ("amr", "libopencore_amrnb", 8000, {}),
    "wma": ("asf", "wmav2", 44100, {}),
    "mp3": ("mp3", "libmp3lame", 44100, {}),
    "mp3-streamed": ("mp3", "libmp3lame", 24000, {"write_xing": "0"}),
    "mp2": ("mp2", "mp2", 48000, {}),
    "mpeg": ("mpeg", "mp2", 48000, {}),
    "ts": ("mpegts", "aac", 48000, {}),
    "avi": ("avi", "libmp3lame", 44100, {}),
    "flv": ("flv", "aac", 44100, {}),
    "wv": ("wv", "wavpack", 44100, {}),
    "ac3": ("ac3", "ac3", 48000, {}),
}


def media(name: str, samples: np.ndarray | None, rate: int, video: bool = False) -> bytes:
    """Mono samples float32 [n], or none, in a container of `MEDIA`, stereo except AMR.

    `video`: beside a picture.
    """
    container, codec, new_rate, options = MEDIA[name]
    layout = "mono" if "amr" in codec else "stereo"
    file = BytesIO()
    with av.open(file, "w", format=container, options=options) as output:
        picture: Any = output.add_stream("mpeg4", rate=25, width=64, height=64) if video else None
        if samples is not None:
            _add_sound(output, codec, new_rate, layout, samples, rate)
        if picture:
            _add_picture(output, picture)
    return file.getvalue()


def _add_sound(output: Any, codec: str, new_rate: int, layout: str, samples: np.ndarray, rate: int) -> None:
    stream = output.add_stream(codec, rate=new_rate)
    stream.layout, stream.bit_rate = layout, 96000 if layout == "stereo" else 12200
    stream.codec_context.open()
    frame = av.AudioFrame.from_ndarray(samples[None].astype(np.float32), "fltp", "mono")
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    resampler = av.AudioResampler(stream.format, layout, new_rate, stream.frame_size or 1024)
    for part in (*resampler.resample(frame), *resampler.resample(None)):
        output.mux(stream.encode(part))
    output.mux(stream.encode(None))


def _add_picture(output: Any, stream: Any) -> None:
    frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), "rgb24")
    frame.pts, frame.time_base = 0, Fraction(1, 25)
    output.mux([*stream.encode(frame), *stream.encode(None)])
