"""The page at ``/``: static files that speak through a browser's own WebSocket. No build step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_WEB: Final = Path(__file__).parent / "web"
# Nothing from elsewhere, nothing inline: what a user types can only ever be text.
_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'self'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
)


def routes() -> list[BaseRoute]:
    return [Route("/", _index), Mount("/web", _Files(directory=_WEB))]


class _Files(StaticFiles):
    """The page's parts, asked for anew each time: those of two versions do not fit together."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


async def _index(_: Request) -> Response:
    return FileResponse(_WEB / "index.html", headers=_HEADERS)
