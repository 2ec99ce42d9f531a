"""What a client sent, up to a place, as far back as it is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.realtime.sent_text import KEPT_CHARS, SentText


@given(st.lists(st.text(max_size=2000), max_size=8), st.integers(0, 20_000))
def test_the_first_characters_of_all_that_was_pushed(pieces: list[str], chars: int) -> None:
    sent = SentText()
    for piece in pieces:
        sent.push(piece)
    whole = "".join(pieces)
    assert sent.chars == len(whole) and sent.upto(chars) == whole[:chars]
    sent.forget(chars)
    assert sent.upto(chars) == whole[:chars], "it is all near enough"


def test_what_is_long_gone_is_not_kept() -> None:
    sent = SentText()
    for number in range(300):
        sent.push(f"{number:03} " * 256)
        sent.forget(sent.chars)
    last = sent.upto(sent.chars)
    assert len(last) == KEPT_CHARS and last.endswith("299 " * 256)
    assert sent.upto(sent.chars - KEPT_CHARS - 2048) == ""
    assert sent.upto(0) == ""
