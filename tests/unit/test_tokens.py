"""Tokens: good once, for a while, by whoever has the secret, and only so many."""

from __future__ import annotations

import base64

import pytest

from shoal.realtime.tokens import (
    MAX_TTL_S,
    PREFIX,
    SpentTokens,
    Ticket,
    Tokens,
    TokensFull,
    shared_secret,
)
from tests.fakes import ManualClock

SECRET = bytes(32)


def test_a_token_is_good_until_it_is_spent() -> None:
    tokens = Tokens(SECRET, ManualClock())
    token = tokens.issue(60.0)
    assert tokens.holds(token) and tokens.holds(token)
    tokens.spend(token)
    assert not tokens.holds(token)


def test_a_token_is_good_until_its_time_is_over() -> None:
    clock = ManualClock()
    tokens = Tokens(SECRET, clock)
    token = tokens.issue(60.0)
    clock.tick(59.9)
    assert tokens.holds(token)
    clock.tick(0.11)
    assert not tokens.holds(token)


def test_who_has_the_secret_knows_it_and_nobody_else_does() -> None:
    clock = ManualClock()
    token = Tokens(SECRET, clock).issue(60.0)
    assert Tokens(SECRET, clock).holds(token)
    assert not Tokens(bytes(31) + b"x", clock).holds(token)
    assert not Tokens(None, clock).holds(token)
    one, other = Tokens(SECRET, clock).ticket(token), Tokens(SECRET, clock).ticket(token)
    assert one == other and one is not None and one.expires_s == one.given_s + 60.0


@pytest.mark.parametrize("at", range(54))
def test_no_byte_of_it_may_differ(at: int) -> None:
    tokens = Tokens(SECRET, ManualClock())
    text = tokens.issue(60.0).removeprefix(PREFIX)
    whole = bytearray(base64.urlsafe_b64decode(text))
    whole[at] ^= 1
    assert not tokens.holds(PREFIX + base64.urlsafe_b64encode(whole).decode())


@pytest.mark.parametrize(
    "key", ["", "once_", "x", "\ud800", "once_AAAA", "once_" + "A" * 200, "once_ä", "once_=", "A=="]
)
def test_what_is_no_token_opens_nothing(key: str) -> None:
    tokens = Tokens(SECRET, ManualClock())
    tokens.issue(60.0)
    tokens.spend(key)
    assert not tokens.holds(key)


def test_it_is_written_in_one_way_only() -> None:
    tokens = Tokens(SECRET, ManualClock())
    while True:
        token = tokens.issue(60.0)
        if "-" in token.removeprefix(PREFIX):
            break
    tokens.spend(token)
    for other in (token + "=", token + "==", token.replace("-", "+"), token + "\n", token + "A"):
        assert not tokens.holds(other)


def test_a_token_of_a_clock_that_is_far_ahead_is_none() -> None:
    ahead, here = ManualClock(), ManualClock()
    ahead.tick(60.0)
    assert not Tokens(SECRET, here).holds(Tokens(SECRET, ahead).issue(60.0))
    here.tick(56.0)
    assert Tokens(SECRET, here).holds(Tokens(SECRET, ahead).issue(60.0))


def test_tokens_differ_and_fit_a_subprotocol_and_a_query() -> None:
    tokens = Tokens(SECRET, ManualClock())
    issued = {tokens.issue(MAX_TTL_S) for _ in range(100)}
    assert len(issued) == 100
    assert all(token.replace("-", "").replace("_", "").isalnum() for token in issued)


def test_only_so_many_are_remembered_and_then_none_is_good_rather_than_one_twice() -> None:
    clock = ManualClock()
    tokens = Tokens(SECRET, clock, most=2)
    issued = [tokens.issue(10.0), tokens.issue(20.0), tokens.issue(60.0)]
    for token in issued[:2]:
        tokens.spend(token)
    assert not any(tokens.holds(token) for token in issued)
    with pytest.raises(TokensFull):
        tokens.issue(10.0)
    clock.tick(16.0)
    assert tokens.holds(issued[2]) and not tokens.holds(issued[1])
    assert tokens.holds(tokens.issue(10.0))


def test_the_first_who_claims_has_it() -> None:
    clock = ManualClock()
    spent = SpentTokens(clock)
    ticket = Ticket(b"x", 0.0, 60.0)
    assert spent.add(ticket) and not spent.add(ticket)


def test_neither_the_token_nor_the_secret_is_kept_in_the_open() -> None:
    tokens = Tokens(SECRET, ManualClock())
    token = tokens.issue(60.0)
    tokens.spend(token)
    assert token not in repr(vars(tokens)) and token.encode() not in repr(vars(tokens)).encode()


def test_the_same_words_give_the_same_secret() -> None:
    assert shared_secret("a") == shared_secret("a") != shared_secret("b")
    assert len(shared_secret("a")) == 32
