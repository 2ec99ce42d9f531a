"""The ASGI app: the routes of every endpoint, the lifespan, and the answers to what went wrong.

An endpoint is a module with ``routes()``; this file lists them. Everything runs on the event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.engine.api import Engine

from . import page, status
from .answers import error_response
from .config import ServerConfig
from .dialects import fish_live
from .gateway import Gateway, Refusal
from .rest import tts


def create_app(engine: Engine, config: ServerConfig) -> Starlette:
    """The app. Its lifespan starts ``engine`` and stops it; ``app.state.gateway`` is the rest."""
    gateway = Gateway(engine, config)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        gateway.run()
        try:
            yield
        finally:
            await gateway.stop()

    app = Starlette(
        routes=[*status.routes(), *page.routes(), *fish_live.routes(), *tts.routes()],
        exception_handlers={HTTPException: _http_error, 500: _server_error},
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    return app


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(Refusal(error.status_code, error.detail))


async def _server_error(_: Request, __: Exception) -> Response:
    return error_response(Refusal(500, "Internal server error"))
