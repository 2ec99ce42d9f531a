"""Who gets in to an HTTP endpoint, and how it is told when it does not. On the event loop.

``endpoint`` counts its client as one of the server's connections from before its body is read to
the end of its answer; ``open_endpoint`` only asks for the key.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.proto.errors import ProtocolError

from .answers import Refused, error_response, gateway_of, refusal_for
from .bodies import budget_of
from .gateway import Refusal

Handler = Callable[[Request], Awaitable[Response]]

logger = logging.getLogger("shoal.endpoint")


def _own_headers(request: Request) -> Mapping[str, str]:
    return request.headers


class _Endpoint:
    """An ASGI app around a handler; a route takes it as it takes a function."""

    def __init__(
        self,
        handler: Handler,
        refuse: Callable[[Refusal], Response],
        headers: Callable[[Request], Mapping[str, str]],
        counts: bool,
    ) -> None:
        self._handler = handler
        self._refuse = refuse
        self._headers = headers
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        gateway = gateway_of(request)
        headers, query = self._headers(request), request.query_params
        check = gateway.refusal if self._counts else gateway.unauthorised
        refusal = check(headers, query)
        if refusal is not None:
            await self._refuse(refusal)(scope, receive, send)
            return
        if self._counts:
            gateway.occupy()
        try:
            await (await self._answer(request))(scope, receive, send)
        finally:
            budget_of(request).give_back(request)
            if self._counts:
                gateway.vacate()

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._handler(request)
        except Refused as refused:
            return self._refuse(refused.refusal)
        except ProtocolError as error:
            return self._refuse(refusal_for(error))
        except Exception:  # the edge of an endpoint: its clients know one shape of an error
            logger.exception("endpoint_crashed")
            gateway_of(request).metrics.errors.labels("engine").inc()
            return self._refuse(Refusal(500, "Internal server error"))


def endpoint(
    handler: Handler,
    *,
    refuse: Callable[[Refusal], Response] = error_response,
    headers: Callable[[Request], Mapping[str, str]] = _own_headers,
) -> ASGIApp:
    """For endpoints that speak or take large bodies: refused while the server starts, drains or
    is full. ``handler`` may raise ``Refused`` and ``ProtocolError``.

    ``refuse`` writes a refusal as the endpoint's clients expect it; ``headers`` is where a key is
    looked for, by the names of Fish's API (``authorization``)."""
    return _Endpoint(handler, refuse, headers, counts=True)


def open_endpoint(
    handler: Handler,
    *,
    refuse: Callable[[Refusal], Response] = error_response,
    headers: Callable[[Request], Mapping[str, str]] = _own_headers,
) -> ASGIApp:
    """The same for endpoints that answer at once: a full server still answers them."""
    return _Endpoint(handler, refuse, headers, counts=False)
