"""Tokens: good once, for a while, and only so many."""

from __future__ import annotations

import pytest

from shoal.realtime.tokens import MAX_TTL_S, Tokens, TokensFull
from tests.fakes import ManualClock


def test_a_token_is_good_until_it_is_spent() -> None:
    tokens = Tokens(ManualClock())
    token = tokens.issue(60.0)
    assert tokens.holds(token) and tokens.holds(token)
    tokens.spend(token)
    assert not tokens.holds(token)


def test_a_token_is_good_until_its_time_is_over() -> None:
    clock = ManualClock()
    tokens = Tokens(clock)
    token = tokens.issue(60.0)
    clock.tick(59.9)
    assert tokens.holds(token)
    clock.tick(0.1)
    assert not tokens.holds(token)


@pytest.mark.parametrize("key", ["", "once_", "x", "\ud800"])
def test_what_is_no_token_opens_nothing(key: str) -> None:
    tokens = Tokens(ManualClock())
    tokens.issue(60.0)
    tokens.spend(key)
    assert not tokens.holds(key)


def test_tokens_differ_and_fit_a_subprotocol_and_a_query() -> None:
    tokens = Tokens(ManualClock())
    issued = {tokens.issue(MAX_TTL_S) for _ in range(100)}
    assert len(issued) == 100
    assert all(token.replace("-", "").replace("_", "").isalnum() for token in issued)


def test_only_so_many_wait_and_those_that_are_over_make_room() -> None:
    clock = ManualClock()
    tokens = Tokens(clock, most=3)
    issued = [tokens.issue(10.0), tokens.issue(20.0), tokens.issue(20.0)]
    with pytest.raises(TokensFull):
        tokens.issue(10.0)
    clock.tick(15.0)
    tokens.issue(10.0)
    with pytest.raises(TokensFull):
        tokens.issue(10.0)
    tokens.spend(issued[1])
    assert tokens.holds(tokens.issue(10.0)) and tokens.holds(issued[2])


def test_a_token_is_kept_as_a_digest_only() -> None:
    tokens = Tokens(ManualClock())
    token = tokens.issue(60.0)
    assert token not in repr(vars(tokens)) and token.encode() not in repr(vars(tokens)).encode()
