"""`Limits`: what the server refuses, or ends."""

from dataclasses import dataclass, field, fields
from typing import Any


def _option(default: float, text: str) -> Any:  # a dataclass field takes its type from the annotation
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Limits:
    """The end of a name is its unit: `_s` are seconds. Names without a unit count what they name.

    Fields with a help text are options of `voxport serve`, and arguments of the application of Ray Serve.
    """

    text_characters: int = _option(4096, "characters of a text to speak")
    upload_mib: int = _option(25, "MiB of an uploaded recording")
    recording_s: int = _option(7200, "seconds of a recording")
    waiting: int = _option(16, "requests of one bundle that wait for a slot")
    jobs_per_key: int = _option(8, "requests and sockets of one key at a time")
    sockets: int = _option(64, "sockets at a time")
    queue_s: float = _option(30, "seconds that a request waits for a slot")
    drain_s: float = _option(30, "seconds that running work has after SIGTERM")
    connections: int = 256  # requests and sockets at a time
    stored_voices: int = 1000  # that clients may store
    body_kib: int = 64  # JSON
    body_s: float = 10  # for more of a body, and for the first message of a socket
    job_buffer_mib: int = 8  # unsent samples of one request
    buffers_mib: int = 256  # unsent samples of all requests
    message_mib: float = 1  # one message of a socket
    ahead_s: float = 10  # audio that a socket is ahead of its transcription
    silent_socket_s: float = 60  # without a message
    session_s: float = 14400  # the whole session of a socket


LIMITS = {each.name: each for each in fields(Limits) if each.metadata}  # that are options
MIB = 2**20
