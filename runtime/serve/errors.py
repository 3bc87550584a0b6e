"""`ApiError`: a refusal in the envelope of the OpenAI API."""

import logging

from pydantic import JsonValue
from starlette.exceptions import HTTPException

from voxport.bundle.errors import EngineUnavailable, IntegrityError, UsageError, VoxportError

TYPES = {429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"}
MAY_RETRY = (408, 429, 500, 503)
FIELDS = {"context": "prompt"}  # of requests, by those of errors of the runtime, if they differ
CODES = {404: "not_found", 405: "method_not_allowed"}  # for errors that the framework raises
OVERLOADED, RETRY_S = "server_is_overloaded", 5
log = logging.getLogger(__name__)


class ApiError(Exception):
    """A request that the server refuses. `param` names the field of the request that was wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after  # seconds

    @property
    def type(self) -> str:
        return TYPES.get(self.status, "invalid_request_error")

    @property
    def body(self) -> dict[str, JsonValue]:
        """The JSON of the response."""
        return {"error": self.fields}

    @property
    def fields(self) -> dict[str, JsonValue]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    @property
    def headers(self) -> dict[str, str]:
        """Clients of the OpenAI API repeat a request after some errors, unless a header forbids it."""
        headers = {} if self.status in MAY_RETRY else {"x-should-retry": "false"}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        return headers


class SessionEnds(Exception):
    """The session of a socket ends with this error."""

    def __init__(self, error: ApiError):
        super().__init__(error.message)
        self.error = error


def from_exception(error: Exception, param: str | None = None) -> ApiError:
    """A UsageError is a fault of the request; every other exception is one of the server.

    `param` is the field of the request if the error names none.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SessionEnds):
        return error.error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), CODES.get(error.status_code))
    if isinstance(error, UsageError) and not isinstance(error, EngineUnavailable):
        name, begin = FIELDS.get(error.field or "", error.field), f"{error.field}: "
        rest = str(error).removeprefix(begin)
        message = f"{name}: {rest}" if str(error).startswith(begin) else rest
        return ApiError(400, message, "invalid_value", name or param)
    if isinstance(error, VoxportError) and not isinstance(error, IntegrityError):
        return ApiError(500, f"the model failed: {error}", "model_failed")
    return ApiError(500, "internal error; the server's log has details", "internal_error")


def failure(error: Exception, param: str | None = None) -> ApiError:
    """See `from_exception`. A fault of the server is logged."""
    found = from_exception(error, param)
    if found.status == 500 and found is not error:
        log.error("a request failed", exc_info=error)
    return found


def draining() -> ApiError:
    return ApiError(503, "the server is shutting down; try another one", "server_shutting_down", None, 1)


def engine_failed(name: str) -> ApiError:
    """`name`: of the bundle."""
    return ApiError(503, f"{name}: the engine failed; restart the server", "engine_failed")


def overloaded(message: str) -> ApiError:
    return ApiError(503, message, OVERLOADED, retry_after=RETRY_S)
