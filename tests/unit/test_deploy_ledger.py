"""The ledger of spent tokens: the first claim wins, and a new ledger trusts nothing older."""

from __future__ import annotations

import pytest

from shoal.realtime.tokens import Ticket
from tests.fakes import ManualClock

pytest.importorskip("ray")

from shoal.deploy.board import FORGET_S, BoardState
from shoal.deploy.ledger import Spent


def test_the_first_claim_wins() -> None:
    clock = ManualClock()
    spent = Spent(clock)
    ticket = Ticket(b"a", clock(), clock() + 60.0)
    assert spent.claim(ticket)
    assert not spent.claim(ticket)
    assert spent.claim(Ticket(b"b", clock(), clock() + 60.0))


def test_a_ledger_that_forgot_takes_no_token_that_is_older_than_itself() -> None:
    clock = ManualClock()
    begun_anew = Spent(clock)
    assert not begun_anew.claim(Ticket(b"a", clock() - 0.1, clock() + 60.0))
    assert begun_anew.claim(Ticket(b"a", clock() + 0.1, clock() + 60.0))


def test_a_board_knows_who_spoke_lately() -> None:
    clock = ManualClock()
    board = BoardState(clock)
    board.note("a", 3.0, 8.0)
    clock.tick(FORGET_S - 0.1)
    board.note("b", 1.0, 8.0)
    assert board.seen() == {"a": (3.0, 8.0), "b": (1.0, 8.0)}
    board.note("b", 2.0, 8.0)
    clock.tick(0.2)
    assert board.seen() == {"b": (2.0, 8.0)}
