"""``/v1/references/*``: voices by an id of one's own, as the open fish-speech server has them.

Answers are that server's, as JSON or MessagePack: ``?format=`` or else ``Accept`` decides. Runs on
the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from shoal.engine.api import Reference
from shoal.engine.voices import BadVoiceId, UnknownVoice, VoiceError, VoiceExists
from shoal.proto.codec import pack
from shoal.proto.errors import Code, ProtocolError
from shoal.realtime.admission import endpoint, open_endpoint
from shoal.realtime.answers import gateway_of
from shoal.realtime.bodies import (
    FORM_TYPES,
    MSGPACK_TYPES,
    content_type,
    read_fields,
    read_form,
)

from .models import catalogue_of, voice_added

PATH: Final = "/v1/references"


def routes() -> list[BaseRoute]:
    return [
        Route(f"{PATH}/add", endpoint(_add), methods=["POST"]),
        Route(f"{PATH}/list", open_endpoint(_list), methods=["GET"]),
        Route(f"{PATH}/delete", endpoint(_delete), methods=["DELETE"]),
        Route(f"{PATH}/update", endpoint(_update), methods=["POST"]),
    ]


async def _add(request: Request) -> Response:
    gateway = gateway_of(request)
    catalogue = catalogue_of(gateway)
    voice_id, audio, text = await _recording(request)

    def add() -> str:
        if not text.strip():
            raise VoiceError("text: what is said in the recording is required")
        return catalogue.add_named(voice_id, Reference(audio, text))

    status, message = await _outcome(add, f"Reference voice '{voice_id}' added")
    if status == 200:
        voice_added(gateway, voice_id)
    return _answer(request, status, message, {"reference_id": voice_id})


async def _recording(request: Request) -> tuple[str, bytes, str]:
    if content_type(request) in MSGPACK_TYPES:
        fields = await read_fields(request)
        voice_id, audio, text = fields.get("id"), fields.get("audio"), fields.get("text")
    else:
        form = await read_form(request)
        voice_id, text = form.one("id"), form.one("text")
        audio = form.files["audio"][-1] if "audio" in form.files else None
    if not (isinstance(voice_id, str) and isinstance(audio, bytes) and isinstance(text, str)):
        raise ProtocolError(Code.BAD_REQUEST, "id, audio and text are required")
    return voice_id, audio, text


async def _list(request: Request) -> Response:
    catalogue = catalogue_of(gateway_of(request))
    voices = await asyncio.to_thread(catalogue.list)
    ids = sorted(voice.voice_id for voice in voices)
    return _answer(request, 200, "Success", {"reference_ids": ids})


async def _delete(request: Request) -> Response:
    gateway = gateway_of(request)
    catalogue = catalogue_of(gateway)
    (voice_id,) = await _strings(request, "reference_id")
    status, message = await _outcome(
        lambda: catalogue.delete(voice_id), f"Reference voice '{voice_id}' deleted"
    )
    if status == 200:
        gateway.names.removed(voice_id)
    return _answer(request, status, message, {"reference_id": voice_id})


async def _update(request: Request) -> Response:
    gateway = gateway_of(request)
    catalogue = catalogue_of(gateway)
    old_id, new_id = await _strings(request, "old_reference_id", "new_reference_id")
    status, message = await _outcome(
        lambda: catalogue.rename(old_id, new_id), f"Reference voice '{old_id}' is now '{new_id}'"
    )
    if status == 200:
        gateway.names.removed(old_id)
        voice_added(gateway, new_id)
    return _answer(
        request, status, message, {"old_reference_id": old_id, "new_reference_id": new_id}
    )


async def _strings(request: Request, *names: str) -> list[str]:
    """:raises ProtocolError: one of them is missing."""
    if content_type(request) in FORM_TYPES:
        form = await read_form(request)
        fields: Mapping[str, object] = {name: form.one(name) for name in names}
    else:
        fields = await read_fields(request)
    values = [value for name in names if isinstance(value := fields.get(name), str) and value]
    if len(values) < len(names):
        raise ProtocolError(Code.BAD_REQUEST, f"{' and '.join(names)} must be a string")
    return values


async def _outcome(work: Callable[[], str | None], done: str) -> tuple[int, str]:
    """Off the loop; the status and what to say of it. ``work`` may have a remark."""
    try:
        remark = await asyncio.to_thread(work)
    except VoiceExists as error:
        return 409, str(error)
    except BadVoiceId as error:
        return 400, str(error)
    except UnknownVoice as error:
        return 404, str(error)
    except VoiceError as error:
        return 400, str(error)
    return 200, f"{done}, but {remark}" if remark else done


def _answer(request: Request, status: int, message: str, fields: Mapping[str, object]) -> Response:
    body: dict[str, object] = {"success": status == 200, "message": message, **fields}
    asked = request.query_params.get("format") or request.headers.get("accept", "")
    if "msgpack" in asked:
        return Response(pack(body), status, media_type="application/msgpack")
    return JSONResponse(body, status)
