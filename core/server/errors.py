"""Refusals in the shape of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse

RETRY_SECONDS = 1
"""What `Retry-After` says where nobody knows better."""
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """A request that is not answered.

    Attributes:
        status: of the response. message: for people. param: the field that it is about. code: for programs.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        """The error object."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole response."""
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def unavailable(message: str) -> ApiError:
    """Not now, but perhaps soon."""
    return ApiError(503, message, code="unavailable", headers={"Retry-After": str(RETRY_SECONDS)})


def too_many(message: str) -> ApiError:
    """The queue is full."""
    return ApiError(429, message, code="queue_full", headers={"Retry-After": str(RETRY_SECONDS)})
