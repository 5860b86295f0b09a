"""The application: its routes."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp

from specdecode.core.server.answering import Server, answer
from specdecode.core.server.errors import ApiError
from specdecode.core.server.gate import Gate
from specdecode.core.server.handlers import ERRORS, add_errors, describe_errors
from specdecode.core.server.schema import ChatRequest, CompletionRequest
from specdecode.core.server.state import State


def make_app(server: Server) -> ASGIApp:
    """The application with its gate."""
    return Gate(app=make_routes(server), max_body=server.max_body, api_key=server.api_key)


def make_routes(server: Server) -> FastAPI:
    """The application behind the gate; its OpenAPI is at /openapi.json."""
    app = FastAPI(title="specdecode serve-local", docs_url=None, redoc_url=None, redirect_slashes=False)
    add_errors(app)
    _add_inference(app, server)
    _add_state(app, server)
    describe_errors(app)
    return app


def _add_inference(app: FastAPI, server: Server) -> None:
    def streams(what: str) -> dict[int | str, dict[str, Any]]:
        whole = {"schema": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"]}}
        return {
            200: {"description": what, "content": {"application/json": whole, "text/event-stream": {}}},
            **ERRORS,
        }

    @app.post("/v1/completions", responses=streams("Continued texts."), response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue texts."""
        return await answer(server, request, lambda: server.translator.completion(body))

    @app.post("/v1/chat/completions", responses=streams("The answer."), response_model=None)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await answer(server, request, lambda: server.translator.chat(body))


def _add_state(app: FastAPI, server: Server) -> None:
    runner = server.runner

    @app.get("/v1/models", responses={401: ERRORS[401]})
    async def models() -> dict[str, object]:
        """The one model."""
        return {"object": "list", "data": [_model(server)]}

    @app.get("/v1/models/{name:path}", responses={401: ERRORS[401], 404: ERRORS[404]})
    async def model(name: str) -> dict[str, object]:
        """The one model by its name."""
        if name != server.translator.model:
            message = f"The model {name!r} does not exist; this server has {server.translator.model!r}."
            raise ApiError(404, message, param="model", code="model_not_found")
        return _model(server)

    @app.get("/health", responses={503: {"description": "The engine has failed."}})
    async def health() -> Response:
        """Whether the process lives; it may still be loading."""
        failed = runner.state is State.FAILED
        return JSONResponse({"status": runner.state.value}, status_code=503 if failed else 200)

    @app.get("/ready", responses={503: ERRORS[503]})
    async def ready() -> dict[str, object]:
        """Whether requests are answered: a token has been generated, and the server is not stopping."""
        runner.check_ready()
        return {"status": runner.state.value}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(runner.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(files("specdecode.core.server").joinpath("page.html").read_text(encoding="utf-8"))


def _model(server: Server) -> dict[str, object]:
    translator = server.translator
    return {
        "id": translator.model,
        "object": "model",
        "created": server.started,
        "owned_by": "specdecode",
        "max_model_len": translator.max_length,
    }
