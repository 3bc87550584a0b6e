"""`Limits`: what the server refuses, or ends."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def _option(default: float, text: str) -> Any:  # a field takes its type from the annotation
    return Field(default, description=text, gt=0, lt=1e9)


class Limits(BaseModel):
    """The end of a name is its unit: `_s` are seconds. Names without a unit count what they name.

    Fields with a description are options of `voxport serve`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
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
    reference_mib: int = 8  # more of it, if a bundle can speak with the voice of a recording
    body_s: float = 10  # for more of a body, and for the first message of a socket
    job_buffer_mib: int = 8  # unsent samples of one request
    buffers_mib: int = 256  # unsent samples of all requests
    message_mib: float = 1  # one message of a socket
    ahead_s: float = 10  # audio that a socket is ahead of its transcription
    silent_socket_s: float = 60  # without a message
    session_s: float = 14400  # the whole session of a socket


LIMITS = {name: field for name, field in Limits.model_fields.items() if field.description}  # that are options
MIB = 2**20
