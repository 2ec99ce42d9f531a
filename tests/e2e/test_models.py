"""Voices over HTTP: made, found, used, changed, deleted; and refused with reasons."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
import soundfile as sf

from shoal.engine.fake import FakeEngine
from shoal.engine.voices import MAX_REFERENCES, VoiceStore

PCM = {"format": "pcm", "sample_rate": 24_000}
PNG = b"\x89PNG\r\n\x1a\n..."
WORDS = "what is said"


def hiss() -> bytes:
    file = io.BytesIO()
    noise = 0.1 * np.random.default_rng(1).standard_normal(32_000)
    sf.write(file, noise.astype(np.float32), 16_000, format="WAV", subtype="PCM_16")
    return file.getvalue()


def recording(seconds: float = 3.0, level: float = 0.3, kind: str = "WAV") -> bytes:
    """A tone that comes and goes, as syllables do."""
    file = io.BytesIO()
    at = np.arange(int(16_000 * seconds))
    wave = level * np.sin(at / 7) * np.sin(at / 1300)
    sf.write(file, wave.astype(np.float32), 16_000, format=kind)
    return file.getvalue()


Start = Callable[..., Any]


@pytest.fixture
def voices(serve: Any, tmp_path: Path) -> Start:
    """A server that keeps voices; called again, it is one that was started anew."""

    def start(**config: Any) -> Any:
        root = tmp_path / "voices"
        engine = FakeEngine(speed=50.0, store=VoiceStore(root))
        return serve(engine, voices_dir=root, **config)

    return start


@pytest.fixture
async def http(voices: Start) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=voices().http, timeout=10) as client:
        yield client


def refused(answer: httpx.Response, status: int, part: str = "") -> None:
    body = answer.json()
    assert answer.status_code == status, body
    assert body.keys() == {"status", "message"} and body["status"] == status
    assert part in body["message"]


async def make(
    http: httpx.AsyncClient, *recordings: bytes, files: Any = (), **fields: Any
) -> httpx.Response:
    """As the SDKs do: files called "upload", lists repeated."""
    fields = {"title": "Ann", "texts": [WORDS] * len(recordings), **fields}
    uploads = [("voices", ("upload", one, "application/octet-stream")) for one in recordings]
    return await http.post("/model", data=fields, files=[*uploads, *files])


async def test_a_voice_has_every_field_that_the_sdks_ask_for(http: httpx.AsyncClient) -> None:
    answer = await make(
        http,
        recording(),
        recording(kind="FLAC"),
        type="tts",
        train_mode="fast",
        visibility="unlist",
        description="speaks",
        tags=["x", "y"],
        enhance_audio_quality="true",
    )
    assert answer.status_code == 201
    entity = answer.json()
    assert entity.keys() == {
        "_id", "type", "title", "description", "cover_image", "train_mode", "state", "tags",
        "samples", "created_at", "updated_at", "languages", "visibility", "lock_visibility",
        "like_count", "mark_count", "shared_count", "task_count", "liked", "marked", "author",
    }  # fmt: skip
    assert (entity["type"], entity["train_mode"], entity["state"]) == ("tts", "fast", "trained")
    assert (entity["title"], entity["description"]) == ("Ann", "speaks")
    assert (entity["visibility"], entity["tags"]) == ("unlist", ["x", "y"])
    assert entity["author"].keys() == {"_id", "nickname", "avatar"}
    assert (await http.get(f"/model/{entity['_id']}")).json() == entity
    assert (await http.get("/model")).json() == {"total": 1, "items": [entity]}


@pytest.mark.parametrize(
    ("seconds", "text", "says"),
    [
        (3.0, WORDS * 50, "made, but the reference's transcript is too long for its recording"),
        (1.5, WORDS, "made, but 1.5 s of reference audio are little"),
    ],
)
async def test_what_may_disappoint_is_told_when_it_is_made(
    http: httpx.AsyncClient, seconds: float, text: str, says: str
) -> None:
    answer = await make(http, recording(seconds), texts=[text])
    assert answer.status_code == 201
    entity = answer.json()
    assert entity.pop("message").startswith(says)
    assert (await http.get(f"/model/{entity['_id']}")).json() == entity


async def test_a_voice_speaks_at_once_and_after_a_restart(voices: Start) -> None:
    said: list[bytes] = []
    voice_id = ""
    for fallback in ("default", None):
        server = voices(fallback_voice=fallback)
        async with httpx.AsyncClient(base_url=server.http, timeout=10) as http:
            if not voice_id:
                voice_id = (await make(http, recording())).json()["_id"]
            assert [m["_id"] for m in (await http.get("/model")).json()["items"]] == [voice_id]
            fields = {"text": "Hello there.", "reference_id": voice_id, **PCM}
            said.append((await http.post("/v1/tts", json=fields)).content)
            usual = (await http.post("/v1/tts", json={"text": "Hello there.", **PCM})).content
        server.stop()
    assert said[0] == said[1] != usual and len(said[0]) == len(usual)


async def test_a_voice_that_cannot_be_read_hides_no_other(voices: Start, tmp_path: Path) -> None:
    server = voices()
    async with httpx.AsyncClient(base_url=server.http, timeout=10) as http:
        broken, whole = [(await make(http, recording())).json()["_id"] for _ in range(2)]
        (tmp_path / "voices" / broken / "voice.json").write_bytes(b"{}")
        assert [m["_id"] for m in (await http.get("/model")).json()["items"]] == [whole]
        assert (await http.get("/v1/references/list")).json()["reference_ids"] == [whole]
        names = {voice["name"] for voice in (await http.get("/v1/voices")).json()["voices"]}
        assert whole in names and broken not in names
        refused(await http.get(f"/model/{broken}"), 404)
        for voice_id, status in ((broken, 400), (whole, 200)):
            fields = {"text": "Hello there.", "reference_id": voice_id, **PCM}
            assert (await http.post("/v1/tts", json=fields)).status_code == status
        assert (await http.delete(f"/model/{broken}")).status_code == 200


async def test_a_voice_is_changed_and_deleted(http: httpx.AsyncClient) -> None:
    made = (await make(http, recording(), tags=["x"])).json()
    path = f"/model/{made['_id']}"
    changes = {"title": "Anna", "visibility": "public", "tags": ["y", "z"]}
    assert (await http.patch(path, data=changes)).status_code == 200
    entity = (await http.get(path)).json()
    assert (entity["title"], entity["visibility"], entity["tags"]) == ("Anna", "public", ["y", "z"])
    assert entity["created_at"] == made["created_at"] <= entity["updated_at"]
    cover = {"cover_image": ("c.png", PNG, "image/png")}
    assert (await http.patch(path, data={"description": "new"}, files=cover)).status_code == 200
    entity = (await http.get(path)).json()
    assert (entity["title"], entity["description"]) == ("Anna", "new")
    picture = await http.get("/" + entity["cover_image"])
    assert (picture.headers["content-type"], picture.content) == ("image/png", PNG)
    assert (await http.delete(path)).status_code == 200
    for ask in (http.get, http.delete):
        refused(await ask(path), 404)
    refused(await http.patch(path, data={"title": "x"}), 404)
    refused(await http.get(path + "/cover"), 404)
    refused(
        await http.post("/v1/tts", json={"text": "x", "reference_id": made["_id"], **PCM}),
        400,
        "Reference not found",
    )


async def test_a_listing_is_filtered_and_cut_into_pages(http: httpx.AsyncClient) -> None:
    await make(http, recording(), title="Ann of Cleves", tags=["queen", "old"])
    await make(http, recording(), title="Bob", tags=["old"], texts=["こんにちは"])
    await make(http, recording(), title="안나", tags=["queen"])

    async def titles(query: str) -> list[str]:
        answer = (await http.get(f"/model?{query}")).json()
        return [item["title"] for item in answer["items"]]

    assert await titles("") == ["안나", "Bob", "Ann of Cleves"]
    assert await titles("title=ann") == ["Ann of Cleves"]
    assert await titles("tag=queen") == ["안나", "Ann of Cleves"]
    assert await titles("tag=queen&tag=old") == ["Ann of Cleves"]
    assert await titles("self=true&author_id=shoal") == ["안나", "Bob", "Ann of Cleves"]
    assert await titles("author_id=other") == []
    assert await titles("language=ja") == ["안나", "Bob", "Ann of Cleves"]  # or not known
    assert await titles("language=en") == ["안나", "Ann of Cleves"]
    assert await titles("title_language=ko") == ["안나", "Bob", "Ann of Cleves"]
    assert await titles("title_language=en") == ["Bob", "Ann of Cleves"]
    for order in ("score", "task_count", "created_at"):
        assert await titles(f"sort_by={order}&page_size=2") == ["안나", "Bob"]
    assert await titles("page_size=2&page_number=2") == ["Ann of Cleves"]
    assert (await http.get("/model?page_size=2&page_number=3")).json() == {"total": 3, "items": []}
    refused(await http.get("/model?sort_by=age"), 400, "sort_by")
    for bad in ("page_size=x", "page_size=0", "page_number=-1", "page_number=99999999999"):
        refused(await http.get(f"/model?{bad}"), 400)


@pytest.mark.parametrize(
    ("audio", "part"),
    [
        (recording(level=0.0), "silent"),
        (recording(seconds=0.2), "at least 1 s"),
        (recording(seconds=61), "longer than 60 s"),
        (b"\0" * 100, "not a wav, mp3, flac or ogg"),
        (b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41", "a video file (mp4)"),
        (hiss(), "no voice can be made out"),
        (recording(level=80.0), "clipped"),
        (b"", "empty"),
        (recording()[:30], "damaged"),
    ],
)
async def test_a_recording_that_cannot_be_a_voice_is_told_why(
    http: httpx.AsyncClient, audio: bytes, part: str
) -> None:
    refused(await make(http, audio), 400, part)
    assert (await http.get("/model")).json()["total"] == 0


@pytest.mark.parametrize(
    ("fields", "count", "part"),
    [
        ({"texts": []}, 1, "texts"),
        ({"texts": [WORDS]}, 2, "texts"),
        ({"texts": [" "]}, 1, "texts"),
        ({}, 0, "voices"),
        ({"texts": [WORDS]}, MAX_REFERENCES + 1, "at most 20"),
        ({"title": ""}, 1, "title"),
        ({"title": "x" * 257}, 1, "title"),
        ({"description": "x" * 4097}, 1, "description"),
        ({"visibility": "secret"}, 1, "visibility"),
        ({"type": "svc"}, 1, "type"),
        ({"train_mode": "full"}, 1, "train_mode"),
        ({"tags": ["x"] + [str(n) for n in range(32)]}, 1, "tags"),
        ({"tags": ["x" * 65]}, 1, "tags"),
    ],
)
async def test_what_is_missing_or_too_much_is_a_400(
    http: httpx.AsyncClient, fields: dict[str, Any], count: int, part: str
) -> None:
    # A part without a file makes it a form in parts even where there is no recording.
    nothing = [("other", ("x", b"x"))]
    refused(await make(http, *[recording()] * count, files=nothing, **fields), 400, part)


async def test_a_picture_must_be_one(http: httpx.AsyncClient) -> None:
    for data in (b"no picture", PNG + bytes(2 << 20)):
        cover = [("cover_image", ("c.png", data, "image/png"))]
        refused(await make(http, recording(), files=cover), 400, "cover_image")


async def test_other_bodies_are_a_415(http: httpx.AsyncClient) -> None:
    refused(await http.post("/model", json={"title": "x"}), 415)
    refused(await http.patch("/model/x", json={"title": "x"}), 415)


async def test_keys_are_asked_for(voices: Start) -> None:
    async with httpx.AsyncClient(base_url=voices(api_keys=("secret",)).http) as http:
        for method, path in [
            ("GET", "/model"), ("POST", "/model"), ("GET", "/model/x"), ("PATCH", "/model/x"),
            ("DELETE", "/model/x"), ("GET", "/model/x/cover"), ("GET", "/v1/references/list"),
            ("POST", "/v1/references/add"), ("DELETE", "/v1/references/delete"),
            ("POST", "/v1/references/update"), ("GET", "/wallet/self/api-credit"),
            ("GET", "/wallet/self/package"), ("POST", "/v1/asr"),
        ]:  # fmt: skip
            refused(await http.request(method, path), 401)


async def test_a_server_that_keeps_no_voices_says_so(serve: Any) -> None:
    async with httpx.AsyncClient(base_url=serve().http) as http:
        assert (await http.get("/model")).json() == {"total": 0, "items": []}
        refused(await make(http, recording()), 403, "keeps no voices")
        refused(await http.get("/model/x"), 403)


# The open server's ------------------------------------------------------------------------------


async def test_references_of_the_open_server(http: httpx.AsyncClient) -> None:
    async def add(voice_id: str, text: str = WORDS) -> httpx.Response:
        audio = {"audio": ("ann.wav", recording(), "audio/wav")}
        fields = {"id": voice_id, "text": text}
        return await http.post("/v1/references/add", data=fields, files=audio)

    added = await add("ann")
    assert added.status_code == 200
    assert added.json() == {
        "success": True,
        "message": "Reference voice 'ann' added",
        "reference_id": "ann",
    }
    again = await add("ann")
    assert again.status_code == 409 and again.json()["success"] is False
    assert (await add("../ann")).status_code == 400
    assert (await add("eve", " ")).status_code == 400
    doubted = await add("dan", WORDS * 50)
    assert doubted.status_code == 200
    assert "added, but the reference's transcript is too long" in doubted.json()["message"]
    await http.request("DELETE", "/v1/references/delete", json={"reference_id": "dan"})
    packed = msgpack.packb({"id": "bob", "audio": recording(), "text": WORDS})
    kind = {"content-type": "application/msgpack"}
    assert (await http.post("/v1/references/add", content=packed, headers=kind)).is_success

    listed = await http.get("/v1/references/list")
    assert listed.json() == {"success": True, "message": "Success", "reference_ids": ["ann", "bob"]}
    for options in (
        {"params": {"format": "msgpack"}},
        {"headers": {"accept": kind["content-type"]}},
    ):
        answer = await http.get("/v1/references/list", **options)
        assert answer.headers["content-type"] == "application/msgpack"
        assert msgpack.unpackb(answer.content) == listed.json()

    fields = {"text": "Hi", "reference_id": "ann", **PCM}
    assert (await http.post("/v1/tts", json=fields)).is_success
    names = {"old_reference_id": "ann", "new_reference_id": "eve"}
    renamed = await http.post("/v1/references/update", json=names)
    assert renamed.status_code == 200 and renamed.json()["success"] is True
    assert renamed.json().keys() == {"success", "message", *names}
    assert (await http.post("/v1/references/update", json=names)).status_code == 404
    taken = {"old_reference_id": "eve", "new_reference_id": "bob"}
    assert (await http.post("/v1/references/update", json=taken)).status_code == 409
    refused(await http.post("/v1/tts", json=fields), 400)
    assert (await http.post("/v1/tts", json={**fields, "reference_id": "eve"})).is_success

    for status in (200, 404):
        gone = await http.request("DELETE", "/v1/references/delete", json={"reference_id": "eve"})
        assert gone.status_code == status and gone.json()["success"] is (status == 200)
    assert (await http.get("/v1/references/list")).json()["reference_ids"] == ["bob"]
    refused(await http.request("DELETE", "/v1/references/delete", json={}), 400)
    refused(await http.post("/v1/references/add", data={"id": "x"}), 400)


async def test_what_this_server_is_not(http: httpx.AsyncClient) -> None:
    refused(await http.post("/v1/asr", content=b"x"), 501)
    credit = (await http.get("/wallet/self/api-credit")).json()
    assert {"_id", "user_id", "credit", "created_at", "updated_at"} <= credit.keys()
    package = (await http.get("/wallet/self/package")).json()
    assert {"_id", "user_id", "type", "total", "balance", "finished_at"} <= package.keys()
