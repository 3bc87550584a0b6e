"""`ApiError`: a refusal in the envelope of the OpenAI API."""

from pydantic import JsonValue, ValidationError

from voxport.bundle.errors import EngineUnavailable, IntegrityError, UsageError, VoxportError

TYPES = {429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"}
MAY_RETRY = (408, 429, 500, 503)
OVERLOADED = "server_is_overloaded"


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
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        return headers


def from_exception(error: Exception, param: str | None = None) -> ApiError:
    """A UsageError is a fault of the request; every other exception is one of the server.

    `param` is the field of the request if the error names none.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UsageError) and not isinstance(error, EngineUnavailable):
        return ApiError(400, str(error), "invalid_value", error.field or param)
    if isinstance(error, VoxportError) and not isinstance(error, IntegrityError):
        return ApiError(500, f"the model failed: {error}", "model_failed")
    return ApiError(500, "internal error; the server's log has details", "internal_error")


def wrong_fields(error: ValidationError) -> ApiError:
    """Names the first field of a request that is wrong."""
    first = error.errors(include_url=False, include_input=False)[0]
    param = str(first["loc"][0])[:50] if first["loc"] else None
    code = "unknown_field" if first["type"] == "extra_forbidden" else "invalid_value"
    return ApiError(400, f"{param or 'body'}: {first['msg']}", code, param)


def draining() -> ApiError:
    return ApiError(503, "the server is shutting down; try another one", "server_shutting_down", None, 1)


def engine_failed(name: str) -> ApiError:
    """`name`: of the bundle."""
    return ApiError(503, f"{name}: the engine failed; restart the server", "engine_failed")


def overloaded(message: str, seconds: float) -> ApiError:
    """`seconds`: about how long the queued work takes."""
    return ApiError(503, message, OVERLOADED, retry_after=max(1, min(60, round(seconds))))
