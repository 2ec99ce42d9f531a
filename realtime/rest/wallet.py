"""What Fish's API has beside voices and this server does not: money, and recognition.

Clients ask for their credit and must get an answer that they can read: here nothing is paid for.
Runs on the event loop.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from shoal.realtime.admission import open_endpoint
from shoal.realtime.answers import error_response
from shoal.realtime.gateway import Refusal

NEVER: Final = "1970-01-01T00:00:00Z"
PLENTY: Final = 1_000_000_000
OWNER: Final = {"user_id": "shoal", "created_at": NEVER, "updated_at": NEVER}


def routes() -> list[BaseRoute]:
    return [
        Route("/wallet/{user_id}/api-credit", open_endpoint(_credit), methods=["GET"]),
        Route("/wallet/{user_id}/package", open_endpoint(_package), methods=["GET"]),
        Route("/v1/asr", open_endpoint(_asr), methods=["POST"]),
    ]


async def _credit(_: Request) -> Response:
    return JSONResponse(
        {
            "_id": "credit",
            **OWNER,
            "credit": str(PLENTY),
            "has_free_credit": True,
            "has_phone_sha256": False,
        }
    )


async def _package(_: Request) -> Response:
    return JSONResponse(
        {
            "_id": "package",
            **OWNER,
            "type": "self-hosted",
            "total": PLENTY,
            "balance": PLENTY,
            "finished_at": NEVER,
        }
    )


async def _asr(_: Request) -> Response:
    return error_response(Refusal(501, "This server speaks; it does not recognise speech"))
