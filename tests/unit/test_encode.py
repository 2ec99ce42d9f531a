"""Samples to payloads, and the threads that do it: order, sizes, lengths, failures."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest

from shoal.engine.fake import tone
from shoal.proto.messages import MAX_AUDIO_BYTES, Prosody, TtsRequest
from shoal.realtime.encode import Chunk, EncodePool, TurnEncoder

RATE = 24_000
SPEECH = tone("a" * 40, "", 0, RATE, 1200)
FRAME = 2 * 1200
PLAIN = Prosody(normalize_loudness=False)


def request(**fields: object) -> TtsRequest:
    plain = {"format": "pcm", "sample_rate": RATE, "prosody": PLAIN}
    return TtsRequest(**{**plain, **fields})  # type: ignore[arg-type]


def frames(samples: bytes, size: int = FRAME) -> list[bytes]:
    return [samples[at : at + size] for at in range(0, len(samples), size)]


def joined(chunks: list[Chunk]) -> bytes:
    return b"".join(chunk.payload for chunk in chunks)


def encode(encoder: TurnEncoder, samples: bytes) -> list[Chunk]:
    chunks = [chunk for frame in frames(samples) for chunk in encoder.feed(frame)]
    return chunks + encoder.finish()


def test_pcm_at_the_model_s_rate_is_the_samples() -> None:
    chunks = encode(TurnEncoder(request(), RATE), SPEECH)
    assert joined(chunks) == SPEECH
    assert sum(chunk.audio_s for chunk in chunks) == pytest.approx(len(SPEECH) / 2 / RATE)


def test_the_first_message_plays_80_ms_and_later_ones_come_as_they_are_made() -> None:
    encoder = TurnEncoder(request(), RATE)
    first, second, third, fourth = (len(joined(encoder.feed(f))) for f in frames(SPEECH)[:4])
    assert first == 0 and second >= 0.08 * 2 * RATE
    assert min(third, fourth) > 1024


@pytest.mark.parametrize("rate", [8000, 16_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("audio_format", ["pcm", "wav"])
def test_every_message_has_a_size_that_clients_take(audio_format: str, rate: int) -> None:
    encoder = TurnEncoder(request(format=audio_format, sample_rate=rate), RATE)
    chunks = encode(encoder, SPEECH)
    assert all(1024 < len(c.payload) <= MAX_AUDIO_BYTES for c in chunks)
    assert all(len(c.payload) % 2 == 0 for c in chunks)
    seconds = (len(joined(chunks)) - 44 * (audio_format == "wav")) / 2 / rate
    assert seconds == pytest.approx(len(SPEECH) / 2 / RATE, rel=0.01)


def test_a_second_of_samples_at_once_is_cut_into_messages() -> None:
    chunks = TurnEncoder(request(sample_rate=48_000), 48_000).feed(bytes(2 * 48_000 * 3))
    assert len(chunks) > 3 and max(len(c.payload) for c in chunks) <= MAX_AUDIO_BYTES


@pytest.mark.parametrize(
    "fields", [{}, {"sample_rate": 8000}, {"format": "opus", "sample_rate": 48_000}]
)
def test_a_flush_leaves_nothing_behind_and_the_stream_goes_on(fields: dict[str, object]) -> None:
    encoder = TurnEncoder(request(**fields), RATE)
    fed_s = len(SPEECH) / 2 / RATE
    first = [chunk for frame in frames(SPEECH) for chunk in encoder.feed(frame)]
    flushed = encoder.flush()
    out_s = sum(chunk.audio_s for chunk in first + flushed)
    assert fed_s - 0.001 <= out_s <= fed_s + 0.1
    assert encoder.flush() == []
    again = [chunk for frame in frames(SPEECH) for chunk in encoder.feed(frame)]
    rest = encoder.finish()
    total_s = sum(chunk.audio_s for chunk in first + flushed + again + rest)
    assert total_s == pytest.approx(2 * fed_s, abs=0.11)


def test_a_flush_before_the_first_message_sends_what_there_is() -> None:
    encoder = TurnEncoder(request(), RATE)
    assert encoder.feed(SPEECH[:FRAME]) == []
    assert joined(encoder.flush()) == SPEECH[:FRAME]


def test_a_very_short_turn_is_filled_up_to_a_message() -> None:
    encoder = TurnEncoder(request(), RATE)
    assert encoder.feed(SPEECH[:100]) == []
    only = joined(encoder.finish())
    assert len(only) > 1024 and only[:100] == SPEECH[:100] and not any(only[100:])


def test_volume_changes_the_samples() -> None:
    louder = encode(TurnEncoder(request(prosody=Prosody(volume_db=20.0)), RATE), SPEECH)
    assert len(joined(louder)) == len(SPEECH) and joined(louder) != SPEECH


def test_only_what_is_dear_leaves_the_loop() -> None:
    assert not TurnEncoder(request(), RATE).off_loop
    assert not TurnEncoder(request(format="wav", sample_rate=8000), RATE).off_loop
    assert TurnEncoder(request(format="opus", sample_rate=48_000), RATE).off_loop


# The pool ---------------------------------------------------------------------------------------


class Loop:
    """Stands for the event loop: runs callbacks on the test's thread, counts them."""

    def __init__(self) -> None:
        self._callbacks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.calls = 0

    def to_loop(self, callback: Callable[[], None]) -> None:
        self._callbacks.put(callback)

    def run_until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._callbacks.get(timeout=5)()
            self.calls += 1


def chunk(number: int) -> Chunk:
    return Chunk(str(number).encode(), 0.1)


def test_a_lane_keeps_its_order_whatever_its_neighbours_do() -> None:
    loop = Loop()
    pool = EncodePool(2, loop.to_loop)
    lanes = [pool.lane() for _ in range(4)]
    results: list[list[object]] = [[] for _ in lanes]
    for number in range(50):
        for lane, got in zip(lanes, results, strict=True):
            lane.submit(lambda number=number: [chunk(number)], got.append)
    loop.run_until(lambda: all(len(got) == 50 for got in results))
    assert all(got == [[chunk(n)] for n in range(50)] for got in results)
    assert not any(lane.busy for lane in lanes)
    pool.stop()


def test_what_waits_comes_back_as_one_batch() -> None:
    loop = Loop()
    pool = EncodePool(1, loop.to_loop)
    lane, got, gate = pool.lane(), list[object](), threading.Event()
    lane.submit(lambda: [chunk(0)] * gate.wait(5), got.append)
    for number in range(1, 20):
        lane.submit(lambda number=number: [chunk(number)], got.append)
    assert lane.busy
    gate.set()
    loop.run_until(lambda: len(got) == 20)
    assert loop.calls <= 2
    pool.stop()


def test_a_job_that_raises_fails_its_own_lane_only() -> None:
    loop = Loop()
    pool = EncodePool(1, loop.to_loop)
    bad, good = list[object](), list[object]()

    def fail() -> list[Chunk]:
        raise ValueError("broken")

    pool.lane().submit(fail, bad.append)
    pool.lane().submit(lambda: [chunk(1)], good.append)
    loop.run_until(lambda: bool(good and bad))
    assert isinstance(bad[0], ValueError) and good == [[chunk(1)]]
    pool.stop()


def test_stop_finishes_what_is_queued_and_joins() -> None:
    loop = Loop()
    pool = EncodePool(2, loop.to_loop)
    lane, got = pool.lane(), list[object]()
    for _ in range(10):
        lane.submit(lambda: time.sleep(0.001) or [], got.append)
    pool.stop()
    loop.run_until(lambda: len(got) == 10)
