"""Bodies of requests: what they are read as, and where reading stops."""

from __future__ import annotations

import json

import msgpack
import pytest
from starlette.requests import Request

from shoal.proto.errors import Code, ProtocolError
from shoal.proto.json_text import MAX_JSON_MARKUP
from shoal.realtime.answers import Refused
from shoal.realtime.bodies import (
    MAX_PARTS,
    BodyBudget,
    json_map,
    read_body,
    read_fields,
    read_form,
)
from tests.bodies import FORM, JSON, MSGPACK, URLENCODED, multipart, request_of


async def status_of(request: Request, limit_bytes: int = 100) -> int:
    with pytest.raises(Refused) as refused:
        await read_body(request, limit_bytes)
    return refused.value.refusal.status


async def test_a_body_comes_in_pieces() -> None:
    assert await read_body(request_of(b"ab", b"", b"cd")) == b"abcd"
    assert await read_body(request_of(bytes(100)), 100) == bytes(100)


async def test_a_body_over_the_limit_is_refused_once_its_client_may_read_that() -> None:
    assert await status_of(request_of(bytes(101))) == 413
    assert await status_of(request_of(bytes(60), bytes(60))) == 413
    # It says so at once: nothing of it is kept, but some of it taken.
    assert await status_of(request_of(bytes(50), bytes(50), bytes(50), declared=150)) == 413
    endless = request_of(*[bytes(50)] * 100, declared=5000)
    assert await status_of(endless) == 413
    assert (await endless.receive())["more_body"], "the rest was not waited for"


async def test_a_client_that_hangs_up_is_gone() -> None:
    assert await status_of(request_of(b"abc", hangs_up=True)) == 499


async def test_all_bodies_together_have_a_limit() -> None:
    budget = BodyBudget(150)
    first = request_of(bytes(100), budget=budget)
    await read_body(first)
    assert await status_of(request_of(bytes(60), budget=budget)) == 503
    await read_body(request_of(bytes(50), budget=budget))
    budget.give_back(first)
    budget.give_back(first)
    assert await status_of(request_of(bytes(101), budget=budget), 1000) == 503
    await read_body(request_of(bytes(100), budget=budget))


async def test_maps_of_either_kind() -> None:
    fields = {"text": "hé", "n": 1.5, "list": [None, True]}
    as_json = json.dumps(fields).encode()
    for kind, body in [
        (JSON, as_json),
        ("Application/JSON; charset=utf-8", as_json),
        (MSGPACK, msgpack.packb(fields)),
        ("application/x-msgpack", msgpack.packb(fields)),
    ]:
        assert await read_fields(request_of(body, kind=kind)) == fields
    for kind in ("", "text/plain", URLENCODED):
        with pytest.raises(Refused) as refused:
            await read_fields(request_of(as_json, kind=kind))
        assert refused.value.refusal.status == 415


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", Code.UNDECODABLE),
        (b"{", Code.UNDECODABLE),
        (b"\xff", Code.UNDECODABLE),
        (b'{"n": 1' + b"0" * 5000 + b"}", Code.UNDECODABLE),
        (b"[" * 60_000, Code.UNDECODABLE),
        (b"[]", Code.MALFORMED),
        (b"1", Code.MALFORMED),
        (b"[" + b"1," * MAX_JSON_MARKUP + b"1]", Code.TOO_BIG),
    ],
)
def test_json_that_is_no_map(body: bytes, code: Code) -> None:
    with pytest.raises(ProtocolError) as error:
        json_map(body)
    assert error.value.code is code


def test_what_is_in_strings_is_not_counted_as_markup() -> None:
    text = '[laugh] {so} "quoted" \\ ' * 20_000
    assert json_map(json.dumps({"text": text}).encode()) == {"text": text}


def test_surrogates_join_or_are_replaced() -> None:
    body = b'{"a": "\\ud83d\\ude00", "b": ["\\ud83d", {"c": "x\\ude00"}]}'
    assert json_map(body) == {"a": "\U0001f600", "b": ["\ufffd", {"c": "x\ufffd"}]}


async def test_a_form_has_values_and_files_each_in_order() -> None:
    big = bytes(range(256)) * 8192  # over what a parser keeps in memory of itself
    body = multipart(
        [("a", None, b"1"), ("f", "one", b"\0\xff"), ("a", None, "é".encode()), ("f", "two", big)]
    )
    form = await read_form(request_of(body[:70], body[70:], kind=FORM))
    assert form.values == {"a": ["1", "é"]} and form.files == {"f": [b"\0\xff", big]}
    assert form.one("a") == "é" and form.one("b") is None
    form = await read_form(request_of(b"a=1&b=%C3%A9+x&a=2", kind=URLENCODED))
    assert form.values == {"a": ["1", "2"], "b": ["é x"]} and form.files == {}


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("multipart/form-data", b"x", 400),
        (FORM, b"", 200),
        (FORM, b"--y\r\n", 400),
        (FORM, b"--x\r\n\r\nvalue\r\n--x--\r\n", 400),
        (FORM, multipart([("a", None, b"1")] * (MAX_PARTS + 1)), 400),
        (FORM, multipart([("a", "f", b"1")] * (MAX_PARTS + 1)), 400),
        (URLENCODED, b"&".join([b"a=1"] * (MAX_PARTS + 1)), 413),
        (JSON, b"{}", 415),
    ],
)
async def test_forms_that_are_none(kind: str, body: bytes, status: int) -> None:
    try:
        await read_form(request_of(body, kind=kind))
    except Refused as refused:
        assert refused.refusal.status == status
    else:
        assert status == 200
