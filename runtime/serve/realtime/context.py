"""`SessionContext`: what a session needs besides the messages of its client."""

from dataclasses import dataclass

from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.connection import Connection


@dataclass(frozen=True)
class SessionContext:
    """A socket, the server's models and limits, and the client's key. `number` differs for each socket."""

    connection: Connection
    models: Models
    limits: Limits
    key: str
    number: str
