"""``/model``: the voices of the server as Fish's API shows them; made, found, changed and deleted.

Translates between HTTP and the catalogue, which waits for the disk on other threads. Runs on the
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar, cast, get_args

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from shoal.engine.api import Prepare, Reference, Voice
from shoal.engine.voices import MAX_REFERENCES, UnknownVoice, VoiceError
from shoal.realtime.admission import endpoint, open_endpoint
from shoal.realtime.answers import Refused, gateway_of
from shoal.realtime.bodies import Form, read_form
from shoal.realtime.gateway import Gateway, Refusal

from .catalogue import Catalogue, Changes, Cover, Details, Model, Visibility
from .languages import script_language

AUTHOR_ID: Final = "shoal"
DEFAULT_PAGE_SIZE: Final = 10
MAX_PAGE_SIZE: Final = 1000
MAX_TITLE_CHARS: Final = 256
MAX_DESCRIPTION_CHARS: Final = 4096
MAX_TAGS: Final = 32
MAX_TAG_CHARS: Final = 64
MAX_COVER_BYTES: Final = 2 << 20
SORTS: Final = ("score", "task_count", "created_at")
COVERS: Final[Mapping[bytes, str]] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}

_Result = TypeVar("_Result")


def routes() -> list[BaseRoute]:
    one = "/model/{voice_id}"
    return [
        Route("/model", open_endpoint(_list), methods=["GET"]),
        Route("/model", endpoint(_create), methods=["POST"]),
        Route(one, open_endpoint(_get), methods=["GET"]),
        Route(one, endpoint(_update), methods=["PATCH"]),
        Route(one, open_endpoint(_delete), methods=["DELETE"]),
        Route(one + "/cover", open_endpoint(_cover), methods=["GET"]),
    ]


def catalogue_of(gateway: Gateway) -> Catalogue:
    """:raises Refused: this server keeps no voices."""
    if gateway.voices is None:
        raise Refused(Refusal(403, "This server keeps no voices"))
    return Catalogue(gateway.voices, gateway.voices.root)


async def from_disk(work: Callable[[], _Result]) -> _Result:
    """Off the loop.

    :raises Refused: 404 for a voice that there is not, 400 for one that cannot be kept.
    """
    try:
        return await asyncio.to_thread(work)
    except UnknownVoice:
        raise Refused(Refusal(404, "Model not found")) from None
    except VoiceError as error:
        raise Refused(Refusal(400, str(error))) from None


def voice_added(gateway: Gateway, voice_id: str) -> None:
    """Let turns find it at once, and its codes be made before the first of them."""
    gateway.names.added(voice_id)
    gateway.hub.submit(Prepare(Voice(voice_id)))


def entity(model: Model) -> dict[str, object]:
    """A ``ModelEntity`` with every field that the SDKs require."""
    return {
        "_id": model.voice_id,
        "type": "tts",
        "title": model.title,
        "description": model.description,
        "cover_image": f"model/{model.voice_id}/cover" if model.has_cover else "",
        "train_mode": "fast",
        "state": "trained",
        "tags": list(model.tags),
        "samples": [],
        "created_at": _iso(model.created_at),
        "updated_at": _iso(model.updated_at),
        "languages": list(model.languages),
        "visibility": model.visibility,
        "lock_visibility": False,
        "like_count": 0,
        "mark_count": 0,
        "shared_count": 0,
        "task_count": 0,
        "liked": False,
        "marked": False,
        "author": {"_id": AUTHOR_ID, "nickname": "shoal", "avatar": ""},
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


# Finding ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """What a listing is asked for. Whose voice it is does not matter: all are the server's own."""

    title: str = ""
    tags: tuple[str, ...] = ()
    author_id: str | None = None
    languages: tuple[str, ...] = ()
    title_languages: tuple[str, ...] = ()
    page_size: int = DEFAULT_PAGE_SIZE
    page_number: int = 1

    def matches(self, model: Model) -> bool:
        return (
            self.title.casefold() in model.title.casefold()
            and set(self.tags) <= set(model.tags)
            and self.author_id in (None, AUTHOR_ID)
            and _speaks(model.languages, self.languages)
            and _speaks(script_language([model.title]), self.title_languages)
        )


def _speaks(known: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """What is not known is not held against a voice."""
    return not wanted or not known or bool(set(known) & set(wanted))


def parse_query(params: QueryParams) -> Query:
    """:raises Refused: a number that is none, or an order that there is not."""
    if params.get("sort_by", SORTS[0]) not in SORTS:
        raise Refused(Refusal(400, f"sort_by must be one of {', '.join(SORTS)}"))
    return Query(
        title=params.get("title") or "",
        tags=tuple(tag for tag in params.getlist("tag") if tag),
        author_id=params.get("author_id") or None,
        languages=tuple(code for code in params.getlist("language") if code),
        title_languages=tuple(code for code in params.getlist("title_language") if code),
        page_size=min(_number(params, "page_size", DEFAULT_PAGE_SIZE), MAX_PAGE_SIZE),
        page_number=_number(params, "page_number", 1),
    )


def _number(params: QueryParams, name: str, default: int) -> int:
    text = params.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise Refused(Refusal(400, f"{name} must be a positive integer"))
    return int(text)


async def _list(request: Request) -> Response:
    query = parse_query(request.query_params)
    gateway = gateway_of(request)
    # Nobody counts how often a voice is used or liked: every order is that of their age.
    models: Sequence[Model] = ()
    if gateway.config.voices_dir is not None:
        models = await from_disk(catalogue_of(gateway).list)
    found = [model for model in models if query.matches(model)]
    first = (query.page_number - 1) * query.page_size
    page = found[first : first + query.page_size]
    return JSONResponse({"total": len(found), "items": [entity(model) for model in page]})


async def _get(request: Request) -> Response:
    catalogue, voice_id = catalogue_of(gateway_of(request)), _voice_id(request)
    return JSONResponse(entity(await from_disk(lambda: catalogue.get(voice_id))))


async def _cover(request: Request) -> Response:
    catalogue, voice_id = catalogue_of(gateway_of(request)), _voice_id(request)
    cover = await from_disk(lambda: catalogue.cover(voice_id))
    if cover is None:
        raise Refused(Refusal(404, "This model has no cover image"))
    return Response(cover.data, media_type=cover.media_type)


def _voice_id(request: Request) -> str:
    return cast(str, request.path_params["voice_id"])


# Making and changing ----------------------------------------------------------------------------


async def _create(request: Request) -> Response:
    gateway = gateway_of(request)
    catalogue = catalogue_of(gateway)
    form = await read_form(request)
    references, details = _references(form), _details(form)
    model = await from_disk(lambda: catalogue.create(references, details))
    voice_added(gateway, model.voice_id)
    remark = {"message": f"made, but {model.doubt}"} if model.doubt else {}
    return JSONResponse({**entity(model), **remark}, 201)


async def _update(request: Request) -> Response:
    catalogue, voice_id = catalogue_of(gateway_of(request)), _voice_id(request)
    form = await read_form(request)
    changes = Changes(
        title=_title(form) if "title" in form.values else None,
        description=_description(form),
        visibility=_visibility(form),
        tags=_tags(form) if "tags" in form.values else None,
        cover=_cover_image(form),
    )
    return JSONResponse(entity(await from_disk(lambda: catalogue.update(voice_id, changes))))


async def _delete(request: Request) -> Response:
    gateway, voice_id = gateway_of(request), _voice_id(request)
    catalogue = catalogue_of(gateway)
    await from_disk(lambda: catalogue.delete(voice_id))
    gateway.names.removed(voice_id)
    return JSONResponse({"status": 200, "message": "Deleted"})


def _bad(message: str) -> Refused:
    return Refused(Refusal(400, message))


def _references(form: Form) -> tuple[Reference, ...]:
    recordings, texts = form.files.get("voices", []), form.values.get("texts", [])
    if not recordings:
        raise _bad("voices: at least one recording is required")
    if len(recordings) > MAX_REFERENCES:
        raise _bad(f"voices: at most {MAX_REFERENCES} recordings")
    if len(texts) != len(recordings) or not all(text.strip() for text in texts):
        raise _bad("texts: what is said in each recording is required, as many as voices")
    return tuple(Reference(audio, text) for audio, text in zip(recordings, texts, strict=True))


def _details(form: Form) -> Details:
    for name, only in (("type", "tts"), ("train_mode", "fast")):
        if form.one(name) not in (None, only):
            raise _bad(f"{name}: only {only} is supported")
    return Details(
        title=_title(form),
        description=_description(form) or "",
        visibility=_visibility(form) or "private",
        tags=_tags(form),
        languages=script_language(form.values["texts"]),
        cover=_cover_image(form),
    )


def _title(form: Form) -> str:
    title = (form.one("title") or "").strip()
    if not 0 < len(title) <= MAX_TITLE_CHARS:
        raise _bad(f"title: 1 to {MAX_TITLE_CHARS} characters are required")
    return title


def _description(form: Form) -> str | None:
    text = form.one("description")
    if text is not None and len(text) > MAX_DESCRIPTION_CHARS:
        raise _bad(f"description: at most {MAX_DESCRIPTION_CHARS} characters")
    return text


def _visibility(form: Form) -> Visibility | None:
    value = form.one("visibility")
    if value is None:
        return None
    if value not in get_args(Visibility):
        raise _bad(f"visibility must be one of {', '.join(get_args(Visibility))}")
    return cast(Visibility, value)


def _tags(form: Form) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(tag for tag in form.values.get("tags", []) if tag))
    if len(tags) > MAX_TAGS or any(len(tag) > MAX_TAG_CHARS for tag in tags):
        raise _bad(f"tags: at most {MAX_TAGS} of at most {MAX_TAG_CHARS} characters")
    return tags


def _cover_image(form: Form) -> Cover | None:
    images = form.files.get("cover_image", [])
    if not images:
        return None
    image = images[-1]
    kind = next((kind for magic, kind in COVERS.items() if image.startswith(magic)), None)
    if kind is None or len(image) > MAX_COVER_BYTES:
        most = MAX_COVER_BYTES >> 20
        raise _bad(f"cover_image must be a png, jpeg, gif or webp image of at most {most} MiB")
    return Cover(kind, image)
