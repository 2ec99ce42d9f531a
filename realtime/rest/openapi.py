"""``/openapi.json``: the HTTP API as an OpenAPI 3.1 document, its ranges from the tables in use.

The WebSocket endpoints are not in it: OpenAPI cannot say what they do. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final, get_args

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from shoal.engine.voices import MAX_REFERENCES
from shoal.proto.messages import MAX_REFERENCES as MAX_INLINE_REFERENCES
from shoal.proto.messages import MAX_TEXT_CHARS, LatencyMode
from shoal.proto.request import MP3_BITRATES, OPUS_BITRATES, OPUS_KBPS, RATES
from shoal.realtime.speaking import CONTENT_TYPES

from .catalogue import Visibility
from .models import (
    MAX_DESCRIPTION_CHARS,
    MAX_TAG_CHARS,
    MAX_TAGS,
    MAX_TITLE_CHARS,
    SORTS,
)

PATH: Final = "/openapi.json"
Json = Mapping[str, object]


def routes() -> list[BaseRoute]:
    return [Route(PATH, _openapi, methods=["GET"])]


async def _openapi(_: Request) -> Response:
    return JSONResponse(document())


def document() -> Json:
    """The whole document, as JSON has it."""
    anybody: Json = {}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shoal",
            "version": version("shoal"),
            "description": "Text to speech as Fish Audio's API has it. The live endpoints are "
            "WebSockets: see docs/protocol.md.",
        },
        "paths": {**_speech_paths(), **_model_paths(), **_other_paths()},
        "components": {
            "schemas": {
                "Error": _object({"status": _INTEGER, "message": _STRING}, closed=True),
                "TtsRequest": _tts_request(),
                "Model": _model(),
                "Outcome": _object({"success": _BOOLEAN, "message": _STRING}),
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": list[str]()}, anybody],
    }


# Parts ------------------------------------------------------------------------------------------

_STRING: Final[Json] = {"type": "string"}
_BOOLEAN: Final[Json] = {"type": "boolean"}
_INTEGER: Final[Json] = {"type": "integer"}
_NUMBER: Final[Json] = {"type": "number"}
_FILE: Final[Json] = {"type": "string", "format": "binary"}
_ERRORS: Final[Mapping[str, str]] = {
    "400": "A value cannot be used",
    "401": "No key, or an unknown one",
    "403": "This page, or this server, may not do that",
    "404": "There is no such voice",
    "408": "The body did not come in time",
    "409": "The id is taken",
    "413": "The body is too big",
    "415": "The body is of another type",
    "429": "No room; Retry-After says when to ask again",
    "501": "Not what this server does",
    "503": "The server is starting or shutting down",
}


def _object(properties: Json, required: Sequence[str] | None = None, closed: bool = False) -> Json:
    """``required`` is all of them unless given."""
    schema: dict[str, object] = {"type": "object", "properties": properties}
    names = list(properties) if required is None else list(required)
    if names:
        schema["required"] = names
    if closed:
        schema["additionalProperties"] = False
    return schema


def _array(items: Json, most: int | None = None) -> Json:
    return {"type": "array", "items": items, **({} if most is None else {"maxItems": most})}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _bounded(low: float, high: float) -> Json:
    return _or_null({**_NUMBER, "minimum": low, "maximum": high})


def _body(**schemas: Json) -> Json:
    """By content type, written with ``_`` for ``/`` and ``__`` for ``-``."""
    content = {
        kind.replace("__", "-").replace("_", "/", 1): {"schema": schema}
        for kind, schema in schemas.items()
    }
    return {"required": True, "content": content}


def _operation(
    summary: str,
    answers: Mapping[str, Json],
    errors: Sequence[str] = (),
    parameters: Sequence[Json] = (),
    body: Json | None = None,
    headers: Json | None = None,
) -> Json:
    """``headers`` are those of ``answers``."""
    told = {} if headers is None else {"headers": headers}
    responses: dict[str, object] = {}
    for status, content in answers.items():
        responses[status] = {"description": "Done", **told, "content": content}
    for status in ("401", "403", *errors):
        responses[status] = {
            "description": _ERRORS[status],
            "content": {"application/json": {"schema": _ref("Error")}},
        }
    operation: dict[str, object] = {"summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = list(parameters)
    if body is not None:
        operation["requestBody"] = body
    return operation


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _header(text: str, always: bool) -> Json:
    return {"schema": _STRING, "description": text, "required": always}


def _parameter(where: str, name: str, schema: Json, text: str) -> Json:
    return {
        "in": where,
        "name": name,
        "schema": schema,
        "description": text,
        "required": where == "path",
    }


# Speech -----------------------------------------------------------------------------------------


def _tts_request() -> Json:
    rates = sorted({rate for rates in RATES.values() for rate in rates})
    reference = _object({"audio": {"type": "string", "format": "byte"}, "text": _STRING})
    prosody = _object(
        {"speed": _bounded(0.5, 2), "volume": _bounded(-20, 20), "normalize_loudness": _BOOLEAN},
        required=(),
    )
    return _object(
        {
            "text": {**_STRING, "maxLength": MAX_TEXT_CHARS},
            "format": {"enum": list(RATES), "default": "mp3"},
            "sample_rate": {"enum": [*rates, None]},
            "mp3_bitrate": {"enum": list(MP3_BITRATES), "default": 128},
            "opus_bitrate": {"enum": [*OPUS_BITRATES, *OPUS_KBPS], "default": -1000},
            "chunk_length": {"type": "integer", "minimum": 100, "maximum": 1000, "default": 300},
            "min_chunk_length": {"type": "integer", "minimum": 0, "maximum": 100, "default": 50},
            "latency": {"enum": list(get_args(LatencyMode)), "default": "normal"},
            "normalize": {**_BOOLEAN, "default": True},
            "prosody": _or_null(prosody),
            "reference_id": {
                "anyOf": [_STRING, _array(_STRING, MAX_INLINE_REFERENCES), {"type": "null"}]
            },
            "references": {
                "anyOf": [
                    _array(reference, MAX_INLINE_REFERENCES),
                    _array(_array(reference, MAX_INLINE_REFERENCES), MAX_INLINE_REFERENCES),
                ]
            },
            "temperature": _bounded(0, 1),
            "top_p": _bounded(0, 1),
            "repetition_penalty": _bounded(0.9, 2),
            "max_new_tokens": _or_null({**_INTEGER, "minimum": 0}),
            "seed": _or_null(_INTEGER),
            "priority": {**_STRING, "default": "live"},
        },
        required=("text",),
    )


def _speech_paths() -> Json:
    body = _body(
        application_json=_ref("TtsRequest"),
        application_msgpack=_ref("TtsRequest"),
        **{
            "multipart_form__data": _object(
                {"text": _STRING, "format": _STRING, "references": _array(_FILE),
                 "texts": _array(_STRING)},
                required=("text",),
            )
        },
    )  # fmt: skip
    audio = {kind: {"schema": _FILE} for kind in dict.fromkeys(CONTENT_TYPES.values())}
    errors = ("400", "408", "413", "415", "429", "503")
    model = _parameter("header", "model", _STRING, "Accepted and not obeyed: one model is loaded")
    events = {"text/event-stream": {"schema": _STRING}}
    headers = {
        "X-Shoal-Model": _header("The model that speaks", always=True),
        "X-Shoal-Remark": _header("On the text or the voice, for a developer", always=False),
    }
    return {
        "/v1/tts": {
            "post": _operation(
                "Speak a text; the audio comes while it is spoken",
                {"200": audio}, errors, [model], body, headers,
            )
        },
        "/v1/tts/stream/with-timestamp": {
            "post": _operation(
                "The same as events that carry audio and when its words are spoken",
                {"200": events}, errors, [model], body, headers,
            )
        },
    }  # fmt: skip


# Voices -----------------------------------------------------------------------------------------


def _model() -> Json:
    texts = ("_id", "type", "title", "description", "cover_image", "train_mode", "state")
    counts = ("like_count", "mark_count", "shared_count", "task_count")
    flags = ("lock_visibility", "liked", "marked")
    time = {"type": "string", "format": "date-time"}
    always: dict[str, object] = {
        **dict.fromkeys(texts, _STRING),
        **dict.fromkeys(("tags", "languages"), _array(_STRING)),
        "samples": _array({"type": "object"}),
        **dict.fromkeys(("created_at", "updated_at"), time),
        "visibility": {"enum": list(get_args(Visibility))},
        **dict.fromkeys(counts, _INTEGER),
        **dict.fromkeys(flags, _BOOLEAN),
        "author": _object({"_id": _STRING, "nickname": _STRING, "avatar": _STRING}),
    }
    return _object({**always, "message": _STRING}, required=list(always))


def _model_paths() -> Json:
    positive = {"type": "integer", "minimum": 1}
    filters = (
        ("title", _STRING, "A part of the title"),
        ("tag", _array(_STRING), "Repeated: has all of them"),
        ("self", _BOOLEAN, "All voices are the server's own"),
        ("author_id", _STRING, "Likewise"),
        ("language", _array(_STRING), "One of these, or not known"),
        ("title_language", _array(_STRING), "Likewise, of the title"),
        ("sort_by", {"enum": list(SORTS)}, "All sort by age, the newest first"),
        ("page_size", {**positive, "maximum": 1000}, ""),
        ("page_number", positive, "From 1"),
    )
    said = {
        "title": {**_STRING, "minLength": 1, "maxLength": MAX_TITLE_CHARS},
        "description": {**_STRING, "maxLength": MAX_DESCRIPTION_CHARS},
        "visibility": {"enum": list(get_args(Visibility))},
        "tags": _array({**_STRING, "maxLength": MAX_TAG_CHARS}, MAX_TAGS),
    }
    made = {
        **said,
        "type": {"enum": ["tts"]},
        "train_mode": {"enum": ["fast"]},
        "voices": _array(_FILE, MAX_REFERENCES),
        "texts": _array(_STRING, MAX_REFERENCES),
        "cover_image": _FILE,
        "enhance_audio_quality": _BOOLEAN,
    }
    changes = _object(said, required=())
    voice_id = [_parameter("path", "voice_id", _STRING, "A voice's id: a reference_id")]
    bodies = ("400", "408", "413", "415", "429", "503")
    page = _object({"total": _INTEGER, "items": _array(_ref("Model"))})
    return {
        "/model": {
            "get": _operation(
                "Find voices", {"200": _json(page)}, ("400",),
                [_parameter("query", *one) for one in filters],
            ),
            "post": _operation(
                "Make a voice of recordings and what is said in them",
                {"201": _json(_ref("Model"))}, bodies,
                body=_body(
                    multipart_form__data=_object(made, required=("title", "voices", "texts"))
                ),
            ),
        },
        "/model/{voice_id}": {
            "get": _operation("A voice", {"200": _json(_ref("Model"))}, ("404",), voice_id),
            "patch": _operation(
                "Change what is said of a voice",
                {"200": _json(_ref("Model"))}, (*bodies, "404"), voice_id,
                {
                    "required": True,
                    "content": {
                        "application/x-www-form-urlencoded": {"schema": changes},
                        "multipart/form-data": {
                            "schema": _object({**said, "cover_image": _FILE}, required=())
                        },
                    },
                },
            ),
            "delete": _operation(
                "Delete a voice", {"200": _json({"type": "object"})}, ("404",), voice_id
            ),
        },
        "/model/{voice_id}/cover": {
            "get": _operation(
                "A voice's picture", {"200": {"image/*": {"schema": _FILE}}}, ("404",), voice_id
            )
        },
    }  # fmt: skip


# The rest ---------------------------------------------------------------------------------------


def _other_paths() -> Json:
    added = _object({"id": _STRING, "audio": _FILE, "text": _STRING})
    renamed = _object({"old_reference_id": _STRING, "new_reference_id": _STRING})
    named = _object({"reference_id": _STRING})
    encoding = _parameter("query", "format", {"enum": ["json", "msgpack"]}, "Of the answer")
    done = {"200": _json(_ref("Outcome"))}
    owner = [_parameter("path", "user_id", _STRING, "self")]
    bodies = ("400", "408", "413", "415", "429", "503")
    any_object = {"200": _json({"type": "object"})}
    return {
        "/v1/references/add": {
            "post": _operation(
                "Keep a recording under an id of one's own", done, (*bodies, "409"), [encoding],
                _body(multipart_form__data=added, application_msgpack=added),
            )
        },
        "/v1/references/list": {"get": _operation("All ids", done, (), [encoding])},
        "/v1/references/delete": {
            "delete": _operation(
                "Delete a voice", done, (*bodies, "404"), [encoding],
                _body(application_json=named, application_msgpack=named),
            )
        },
        "/v1/references/update": {
            "post": _operation(
                "Give a voice another id", done, (*bodies, "404", "409"), [encoding],
                _body(application_json=renamed, application_msgpack=renamed),
            )
        },
        "/wallet/{user_id}/api-credit": {
            "get": _operation("Nothing is paid for here", any_object, (), owner)
        },
        "/wallet/{user_id}/package": {
            "get": _operation("Nothing is paid for here", any_object, (), owner)
        },
        "/v1/asr": {"post": _operation("Not here", {}, ("501",))},
        "/v1/health": {"get": _operation("Whether it speaks", any_object, ("503",))},
        "/metrics": {
            "get": _operation("For Prometheus", {"200": {"text/plain": {"schema": _STRING}}})
        },
    }  # fmt: skip
