"""Errors of every kind in OpenAI's shape, in responses and in the OpenAPI schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from specdecode.core.errors import SpecdecodeError, UsageError
from specdecode.core.server.errors import ApiError

_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request is not possible; the message says why.", "content": _ERROR},
    401: {"description": "The API key is missing or wrong.", "content": _ERROR},
    404: {"description": "There is no such model.", "content": _ERROR},
    408: {"description": "The body did not arrive in time.", "content": _ERROR},
    413: {"description": "The body is too large.", "content": _ERROR},
    429: {"description": "The queue is full.", "content": _ERROR},
    500: {"description": "The engine failed on this request.", "content": _ERROR},
    503: {"description": "Not ready, or stopping.", "content": _ERROR},
}
"""What an operation may answer instead."""


def add_errors(app: FastAPI) -> None:
    """Answer whatever goes wrong with an error object."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response()

    async def refused(request: Request, error: Exception) -> Response:
        return ApiError(400 if isinstance(error, UsageError) else 500, str(error)).response()

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _invalid(error.errors()).response()

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = {
            404: f"There is no {request.url.path} here.",
            405: f"{request.url.path} does not take {request.method}.",
            400: "The body is no JSON, or nested too deeply.",
        }.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message, headers=error.headers).response()

    async def defect(request: Request, error: Exception) -> Response:
        return ApiError(500, f"The server failed on this request ({type(error).__name__}).").response()

    app.exception_handler(ApiError)(ours)
    app.exception_handler(SpecdecodeError)(refused)
    app.exception_handler(RequestValidationError)(invalid)
    app.exception_handler(HTTPException)(http)
    app.exception_handler(Exception)(defect)


def _invalid(errors: Sequence[Any]) -> ApiError:
    """The first thing that is wrong with a body, with its place."""
    first = errors[0]
    place = [str(part) for part in first["loc"][1:]]
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body is no JSON: {first['ctx']['error']} at character {first['loc'][-1]}.")
    if not place:
        return ApiError(400, "The body must be a JSON object, sent as application/json.")
    if place[0] == "prompt" and first["type"] != "missing":
        message = "prompt must be a text, a list of texts, token ids, or a list of those; none of the lists empty."
        return ApiError(400, message, param="prompt")
    return ApiError(400, f"{'.'.join(place)}: {first['msg'][:1].lower()}{first['msg'][1:]}.", param=place[0])


def describe_errors(app: FastAPI) -> None:
    """Put the error object into the schema, where FastAPI would describe its own."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = made()
            text = {"type": ["string", "null"]}
            inner = {"message": {"type": "string"}, "type": {"type": "string"}, "param": text, "code": text}
            error = {"type": "object", "properties": inner, "required": list(inner)}
            schemas = schema["components"]["schemas"]
            schemas["Error"] = {"type": "object", "properties": {"error": error}, "required": ["error"]}
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
