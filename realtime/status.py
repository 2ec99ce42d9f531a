"""How the server is: ``/v1/health`` for balancers, ``/metrics`` for Prometheus."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from . import metrics
from .answers import gateway_of


def routes() -> list[BaseRoute]:
    return [Route("/v1/health", _health, methods=["GET", "POST"]), Route("/metrics", _metrics)]


async def _health(request: Request) -> Response:
    gateway = gateway_of(request)
    if gateway.ready and not gateway.draining:
        return JSONResponse({"status": "ok"})
    status = "draining" if gateway.draining else "starting"
    return JSONResponse({"status": status}, 503, {"Retry-After": "1"})


async def _metrics(request: Request) -> Response:
    return Response(gateway_of(request).metrics.page(), media_type=metrics.CONTENT_TYPE)
