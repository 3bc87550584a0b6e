"""`Limits`: what the server refuses, or ends. Each field is an option of `voxport serve`."""

from dataclasses import dataclass, field, fields
from typing import Any


def _limit(default: float, text: str) -> Any:  # a dataclass field takes its type from the annotation
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Limits:
    """The end of a name is its unit: `_s` are seconds. Names without a unit count what they name."""

    text_characters: int = _limit(4096, "characters of a text to speak")
    body_kib: int = _limit(64, "KiB of a JSON body")
    upload_mib: int = _limit(25, "MiB of an uploaded recording")
    stored_voices: int = _limit(1000, "voices that clients may store")
    recording_s: int = _limit(7200, "seconds of a recording")
    waiting: int = _limit(16, "requests of one bundle that wait for a slot")
    jobs_per_key: int = _limit(8, "requests and sockets of one key at a time")
    connections: int = _limit(256, "connections at a time")
    sockets: int = _limit(64, "sockets at a time")
    queue_s: float = _limit(30, "seconds that a request waits for a slot")
    send_s: float = _limit(30, "seconds that a client may take to receive what was sent")
    job_buffer_mib: int = _limit(8, "MiB of samples that one request may have unsent")
    buffers_mib: int = _limit(256, "MiB of unsent samples of all requests")
    message_mib: float = _limit(1, "MiB of a socket message")
    ahead_s: float = _limit(10, "seconds of audio that a socket may be ahead")
    silent_socket_s: float = _limit(60, "seconds without a message after which a socket is closed")
    session_s: float = _limit(14400, "seconds of a socket session")
    header_s: float = _limit(
        10, "seconds for the headers of a request, for more of its body, and for a socket's first message"
    )
    drain_s: float = _limit(30, "seconds that running work has after SIGTERM")


LIMITS = {each.name: each for each in fields(Limits)}
MIB = 2**20
