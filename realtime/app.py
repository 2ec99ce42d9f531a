"""The ASGI app: the routes of every endpoint, the lifespan, and the answers to what went wrong.

An endpoint is a module with ``routes()``; this file lists them. Everything runs on the event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from shoal.engine.api import Engine
from shoal.engine.voices import VoiceStore

from . import page, status
from .answers import error_response
from .bodies import BodyBudget
from .config import ServerConfig
from .cors import cors
from .dialects import cartesia, deepgram, elevenlabs, elevenlabs_http, fish_live, openai
from .gateway import Gateway, Refusal
from .rest import models, openapi, references, tokens, tts, wallet
from .trace import TraceContext, Traces


def create_app(
    engine: Engine,
    config: ServerConfig,
    voices: VoiceStore | None = None,
    traces: Traces | None = None,
) -> Starlette:
    """The app. Its lifespan starts ``engine`` and stops it; ``app.state.gateway`` is the rest.

    ``voices``: instead of the store of ``config.voices_dir``, which it then keeps its files in."""
    gateway = Gateway(engine, config, voices, traces)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        gateway.run()
        try:
            yield
        finally:
            await gateway.stop()

    app = Starlette(
        routes=[
            *status.routes(),
            *page.routes(),
            *fish_live.routes(),
            *tts.routes(),
            *tokens.routes(),
            *models.routes(),
            *references.routes(),
            *wallet.routes(),
            *openapi.routes(),
            *openai.routes(),
            *elevenlabs.routes(),
            *elevenlabs_http.routes(),
            *deepgram.routes(),
            *cartesia.routes(),
        ],
        middleware=[
            *([] if traces is None else [Middleware(TraceContext)]),
            *cors(config.allow_origins),
        ],
        exception_handlers={HTTPException: _http_error, 500: _server_error},
        lifespan=lifespan,
    )
    app.router.default = _nowhere
    app.state.gateway = gateway
    app.state.body_budget = BodyBudget()
    app.state.parsing = gateway.parsing
    return app


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """No route matched: a WebSocket is told so before its upgrade, as a request is."""
    if scope["type"] == "websocket":
        refusal = error_response(Refusal(404, "Not Found"))
        await WebSocket(scope, receive, send).send_denial_response(refusal)
    else:
        raise HTTPException(404)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = error_response(Refusal(error.status_code, error.detail))
    response.headers.update(error.headers or {})
    return response


async def _server_error(_: Request, __: Exception) -> Response:
    return error_response(Refusal(500, "Internal server error"))
