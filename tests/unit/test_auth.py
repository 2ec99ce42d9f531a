"""Who may connect."""

from __future__ import annotations

import pytest

from shoal.realtime import auth

KEYS = ("first-key", "second-key")


@pytest.mark.parametrize(
    ("headers", "query", "key"),
    [
        ({"authorization": "Bearer abc"}, {}, "abc"),
        ({"authorization": "bearer  abc "}, {}, "abc"),
        ({"authorization": "Basic abc"}, {}, None),
        ({"authorization": "Bearer"}, {}, None),
        ({"authorization": "Bearer "}, {"api_key": "q"}, "q"),
        ({"authorization": "Bearer abc"}, {"api_key": "q"}, "abc"),
        ({}, {"token": "t"}, "t"),
        ({}, {"api_key": "", "token": "t"}, "t"),
        ({}, {}, None),
        ({"sec-websocket-protocol": "fish.v1, bearer.abc"}, {}, "abc"),
        ({"sec-websocket-protocol": "bearer.a,bearer.b"}, {"token": "t"}, "a"),
        ({"sec-websocket-protocol": "fish.v1,bearer."}, {"token": "t"}, "t"),
        ({"sec-websocket-protocol": "bearer.a", "authorization": "Bearer b"}, {}, "b"),
    ],
)
def test_where_a_key_is_looked_for(
    headers: dict[str, str], query: dict[str, str], key: str | None
) -> None:
    assert auth.presented_key(headers, query) == key


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("first-key", True),
        ("second-key", True),
        ("first-ke", False),
        ("first-key ", False),
        ("", False),
        (None, False),
        ("\ud800", False),
        ("sch\u00fcssel", False),
    ],
)
def test_a_key_is_known_or_not(key: str | None, known: bool) -> None:
    assert auth.key_is_known(key, KEYS) is known


def test_no_key_matches_where_there_are_none() -> None:
    assert not auth.key_is_known("", ())


def test_every_key_is_compared_whichever_matches() -> None:
    """Constant time means: no early return. Counted rather than timed."""
    seen: list[bytes] = []

    def equal(given: bytes, known: bytes) -> bool:
        seen.append(known)
        return given == known

    assert auth.key_is_known("first-key", KEYS, equal)
    assert seen == [b"first-key", b"second-key"]


@pytest.mark.parametrize(
    ("origin", "allowed", "passes"),
    [
        (None, (), True),
        ("http://localhost:8080", (), True),
        ("https://localhost:8080", (), True),
        ("http://localhost:9999", (), False),
        ("https://evil.example", (), False),
        ("https://evil.example", ("https://good.example",), False),
        ("https://good.example", ("https://good.example",), True),
        ("https://any.example", ("*",), True),
        ("null", (), False),
        ("http://[broken", (), False),
        ("", (), False),
    ],
)
def test_a_browser_page_is_ours_or_on_the_list(
    origin: str | None, allowed: tuple[str, ...], passes: bool
) -> None:
    headers = {"host": "localhost:8080"} | ({"origin": origin} if origin is not None else {})
    assert auth.origin_is_allowed(headers, allowed) is passes


def test_a_refusal_has_the_status_that_clients_know() -> None:
    page = {"host": "a", "origin": "https://b"}
    assert auth.refusal({}, {}, KEYS, ()) == (401, "Invalid or missing API key")
    assert auth.refusal({"authorization": "Bearer first-key"}, {}, KEYS, ()) is None
    assert auth.refusal({}, {}, (), ()) is None
    assert auth.refusal(page, {}, (), ()) == (403, "Origin not allowed")
    assert auth.refusal(page, {"token": "second-key"}, KEYS, ()) is None


def test_a_token_does_for_a_key_where_tokens_are_taken() -> None:
    query = {"token": "once"}
    assert auth.refusal({}, query, KEYS, (), {"once"}.__contains__) is None
    assert auth.refusal({}, query, KEYS, (), {"other"}.__contains__) is not None
    assert auth.refusal({}, query, KEYS, ()) is not None
    assert auth.refusal({}, {}, KEYS, (), lambda _: True) is not None


def test_subprotocols_are_those_offered() -> None:
    assert auth.subprotocols({"sec-websocket-protocol": " a, ,b,"}) == ["a", "b"]
    assert auth.subprotocols({}) == []
