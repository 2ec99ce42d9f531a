from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.proto.messages import MAX_AUDIO_BYTES
from shoal.realtime.rechunk import Rechunker


def sound(size: int, start: int = 0) -> bytes:
    return bytes((start + i) % 251 + 1 for i in range(size))


def test_the_first_message_is_never_held() -> None:
    assert Rechunker().push(sound(1026)) == [sound(1026)]
    assert Rechunker().push(sound(9600)) == [sound(9600)]


def test_a_small_beginning_waits_for_the_rest() -> None:
    chunker = Rechunker()
    assert chunker.push(sound(44)) == []
    assert chunker.push(sound(960)) == []
    assert chunker.push(sound(960)) == [sound(44) + sound(960) * 2]


def test_the_end_goes_with_what_was_kept_for_it() -> None:
    chunker = Rechunker()
    chunker.push(sound(4800))
    assert chunker.push(sound(4800)) == [sound(4800)[:-1026]]
    assert chunker.push(sound(240)) == []
    assert chunker.flush() == [sound(4800)[-1026:] + sound(240)]
    assert chunker.flush() == []


def test_a_stream_of_one_small_message_is_filled_with_silence() -> None:
    chunker = Rechunker()
    chunker.push(sound(100))
    assert chunker.flush() == [sound(100) + bytes(926)]
    chunker.push(sound(2000))
    chunker.push(sound(2))
    assert chunker.flush() == [sound(2) + bytes(1024)]


def test_after_a_flush_the_next_message_is_a_first_one() -> None:
    chunker = Rechunker()
    chunker.push(sound(4800))
    chunker.push(sound(4800))
    chunker.flush()
    assert chunker.push(sound(4800)) == [sound(4800)]


def test_nothing_in_nothing_out() -> None:
    chunker = Rechunker()
    assert chunker.push(b"") == [] and chunker.flush() == []


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 4000), st.integers(60_000, 200_000)), max_size=12)
)
def test_every_message_has_a_size_that_clients_take(pushes: list[int | None]) -> None:
    """``None`` stands for a flush; sizes are samples."""
    chunker = Rechunker()
    sent, messages = b"", list[bytes]()
    padding = 0
    for samples in [*pushes, None]:
        if samples is None:
            held = len(sent) + padding - sum(map(len, messages))
            out = chunker.flush()
            padding += sum(map(len, out)) - held
        else:
            data = sound(2 * samples, len(sent))
            sent += data
            out = chunker.push(data)
        messages += out
    assert all(1024 < len(m) <= MAX_AUDIO_BYTES and len(m) % 2 == 0 for m in messages)
    joined = b"".join(messages)
    assert len(joined) == len(sent) + padding
    # Sound is never zero here, so what is left without zeros is all of it, in order.
    assert joined.replace(b"\0", b"") == sent
