"""A turn's audio in order and its times as they are counted."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.engine.api import EngineStats, Pcm, StreamId, Timing
from shoal.engine.fake_tone import tone
from shoal.proto.messages import Prosody, TtsRequest
from shoal.realtime.encode import Chunk, EncodePool
from shoal.realtime.metrics import Metrics
from shoal.realtime.turn import Turn

RATE = 24_000
SPEECH = tone("a" * 20, "", 0, RATE, 1200)
PLAIN = Prosody(normalize_loudness=False)


class Bench:
    """A turn without a connection; what a lane gives back waits until ``run_until``."""

    def __init__(self) -> None:
        self.metrics = Metrics(EngineStats, 1)
        self.chunks: list[Chunk] = []
        self.given = 0
        self.failures: list[Exception] = []
        self.inserted: list[tuple[int, float]] = []
        self._callbacks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.pool = EncodePool(1, self._callbacks.put)

    def turn(self, **fields: object) -> Turn:
        plain = {"format": "pcm", "sample_rate": RATE, "prosody": PLAIN}
        request = TtsRequest(**{**plain, **fields})  # type: ignore[arg-type]
        return Turn(
            StreamId(1),
            request,
            RATE,
            self.pool,
            self.metrics,
            100.0,
            self._take,
            self.failures.append,
            lambda at_samples, total_s: self.inserted.append((at_samples, total_s)),
        )

    def _take(self, chunks: list[Chunk], samples: int) -> None:
        self.chunks += chunks
        self.given += samples

    def run_until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._callbacks.get(timeout=30)()

    def value(self, name: str, **labels: str) -> float:
        for family in text_string_to_metric_families(self.metrics.page().decode()):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        raise KeyError(name)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.pool.stop()


def test_pcm_comes_at_once_and_a_step_behind_it_too(bench: Bench) -> None:
    turn = bench.turn()
    turn.encode(SPEECH)
    turn.finish()
    assert b"".join(chunk.payload for chunk in bench.chunks) == SPEECH
    steps: list[int] = []
    turn.in_order(lambda: steps.append(len(bench.chunks)))
    assert steps == [len(bench.chunks)]


def test_a_step_waits_for_what_a_lane_is_still_at(bench: Bench) -> None:
    turn = bench.turn(format="opus", sample_rate=48_000)
    turn.encode(SPEECH)
    turn.finish()
    seen: list[int] = []
    turn.in_order(lambda: seen.append(len(bench.chunks)))
    assert seen == [] and bench.chunks == []
    bench.run_until(lambda: bool(seen))
    assert seen == [2]  # the audio and its end came before


def test_nothing_comes_out_of_a_dropped_turn(bench: Bench) -> None:
    turn = bench.turn(format="opus", sample_rate=48_000)
    turn.encode(SPEECH)
    turn.dropped = True
    over: list[int] = []
    turn.in_order(lambda: over.append(1))
    bench.run_until(lambda: bool(over))
    assert bench.chunks == []


def test_an_encoder_that_fails_on_a_lane_is_told(bench: Bench) -> None:
    turn = bench.turn(format="opus", sample_rate=48_000)
    turn.encode(SPEECH + b"x")  # half a sample
    bench.run_until(lambda: bool(bench.failures))
    assert isinstance(bench.failures[0], ValueError)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sample_rate": 16_000},
        {"format": "opus", "sample_rate": 48_000},
        {"format": "mp3", "sample_rate": 44_100},
        {"sample_rate": 16_000, "prosody": Prosody(speed=1.5)},
    ],
)
def test_silence_that_a_flush_inserts_is_told_for_what_comes_behind_it(
    bench: Bench, fields: dict[str, object]
) -> None:
    """Where sound follows sound at once, no quiet takes the inserted silence back."""
    turn = bench.turn(**fields)
    for _ in range(5):
        turn.encode(SPEECH)
        turn.flush()
    over: list[int] = []
    turn.in_order(lambda: over.append(1))
    bench.run_until(lambda: bool(over))
    speed = 1.5 if "prosody" in fields else 1.0
    given = 4 * len(SPEECH) // 2
    told_s = [total_s for at, total_s in bench.inserted if at <= given]
    before_last_s = given / RATE / speed + (told_s[-1] if told_s else 0.0)
    all_s = sum(chunk.audio_s for chunk in bench.chunks)
    assert turn.queued_audio_s == pytest.approx(all_s)
    # The last fifth begins where the first four ended; its own flush added what is left over.
    assert all_s - before_last_s == pytest.approx(len(SPEECH) / 2 / RATE / speed, abs=0.12)
    assert all(at % (len(SPEECH) // 2) == 0 for at, _ in bench.inserted)


def test_the_end_of_a_turn_is_counted_once(bench: Bench) -> None:
    turn = bench.turn()
    turn.report("stop", 1, 101.0)
    turn.report("cancelled", 1, 102.0)
    assert bench.value("shoal_turns_ended_total", end="stop") == 1


def test_time_to_first_audio_counts_from_the_first_text_that_is_not_blank(bench: Bench) -> None:
    turn = bench.turn()
    turn.got_text(" ", 100.1)
    turn.got_text("Hi", 100.2)
    turn.got_text(" there", 100.3)
    turn.got_audio(Pcm(StreamId(1), 0, b"", Timing(0.01, 0.02, 0.03, 0.04)), 100.31)
    turn.sent_audio(0.1, 100.35)
    turn.sent_audio(0.1, 100.36)
    assert turn.ttfa_s == pytest.approx(0.15) and turn.text_chars == 9
    assert bench.value("shoal_ttfa_seconds_count") == 1
    assert bench.value("shoal_ttfa_seconds_sum") == pytest.approx(0.15)


def test_the_lead_is_what_the_client_has_left_when_the_next_chunk_goes_out(bench: Bench) -> None:
    def with_at_most(seconds: str) -> float:
        return bench.value("shoal_playout_lead_seconds_bucket", le=seconds)

    turn = bench.turn()
    turn.sent_audio(0.5, 100.0)
    turn.sent_audio(0.5, 100.15)  # 0.35 s left
    assert (with_at_most("0.2"), with_at_most("0.5")) == (0, 1)
    turn.sent_audio(0.5, 101.1)  # ran dry 0.1 s ago
    assert (with_at_most("-0.05"), with_at_most("0.5")) == (1, 2)
    turn.sent_audio(0.5, 101.2)  # and counts afresh from there: 0.4 s left
    assert (with_at_most("0.2"), with_at_most("0.5")) == (1, 3)
    assert turn.sent_audio_s == pytest.approx(2.0)
