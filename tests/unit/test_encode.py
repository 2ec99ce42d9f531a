"""Samples to payloads, and the threads that do it: order, sizes, lengths, failures."""

from __future__ import annotations

import io
import queue
import threading
import time
from collections.abc import Callable
from itertools import takewhile

import numpy as np
import pytest
import soundfile

from shoal.engine.fake_tone import tone
from shoal.proto.messages import MAX_AUDIO_BYTES, Prosody, TtsRequest
from shoal.proto.request import RATES
from shoal.realtime.audio.samples import loud_samples
from shoal.realtime.encode import BATCH_S, Chunk, EncodePool, TurnEncoder
from tests.fakes import ManualClock
from tests.speech import builtin_voice

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
    assert not TurnEncoder(request(format="wav"), RATE).off_loop
    assert TurnEncoder(request(sample_rate=8000), RATE).off_loop
    assert TurnEncoder(request(format="ulaw", sample_rate=8000), RATE).off_loop
    assert TurnEncoder(request(format="opus", sample_rate=48_000), RATE).off_loop
    assert TurnEncoder(request(format="mp3", sample_rate=44_100), RATE).off_loop
    assert TurnEncoder(request(prosody=Prosody(speed=1.1)), RATE).off_loop


# What the built-in voice said, in every format -----------------------------------------------

VOICE = np.rint(builtin_voice() * 32767).astype("<i2").tobytes()
SEGMENTS = (VOICE[: 2 * 64_560], VOICE[2 * 64_560 :])  # cut in the pause between its sentences
FRAME_S = 0.05
EVERY_FORMAT = [
    *((name, rate, 128) for name, rates in RATES.items() for rate in rates),
    ("mp3", 44_100, 64),
    ("mp3", 32_000, 192),
]


def played_s(audio_format: str, rate: int, stream: bytes) -> float:
    """How long a player plays it."""
    match audio_format:
        case "mp3" | "opus":
            samples, heard_rate = soundfile.read(io.BytesIO(stream))
            assert heard_rate == rate
            return len(samples) / rate
        case "flac":
            return 0.0
        case "wav":
            return (len(stream) - 44) / 2 / rate
        case _:
            return (
                len(stream) / {"pcm": 2, "pcm_f32le": 4, "ulaw": 1, "alaw": 1}[audio_format] / rate
            )


@pytest.mark.parametrize("speed", [1.0, 1.25])
@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize(("audio_format", "rate", "kbps"), EVERY_FORMAT)
def test_a_turn_is_as_long_in_every_format_flushed_or_not(
    audio_format: str, rate: int, kbps: int, flushes: bool, speed: float
) -> None:
    encoder = TurnEncoder(
        request(
            format=audio_format,
            sample_rate=rate,
            mp3_bitrate_kbps=kbps,
            prosody=Prosody(speed=speed),
        ),
        RATE,
    )
    chunks: list[Chunk] = []
    for segment in SEGMENTS:
        chunks += [chunk for frame in frames(segment) for chunk in encoder.feed(frame)]
        chunks += encoder.flush() if flushes else []
    chunks += encoder.finish()
    wanted_s = len(VOICE) / 2 / RATE / speed
    # A coder's own frame of silence may be what pushed a sentence's end out, at the lowest bitrate.
    frame_s = FRAME_S + (1152 / rate if audio_format == "mp3" and kbps == 64 and flushes else 0)
    assert sum(chunk.audio_s for chunk in chunks) == pytest.approx(wanted_s, abs=frame_s)
    if audio_format != "flac":
        assert played_s(audio_format, rate, joined(chunks)) == pytest.approx(wanted_s, abs=frame_s)
    assert len(chunks) > 10 and all(chunk.audio_s > 0 for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("audio_format", "rate"), [("mp3", 44_100), ("opus", 48_000), ("flac", 24_000)]
)
def test_what_sounds_is_out_after_a_flush(audio_format: str, rate: int) -> None:
    encoder = TurnEncoder(request(format=audio_format, sample_rate=rate), RATE)
    chunks = [chunk for frame in frames(SEGMENTS[0]) for chunk in encoder.feed(frame)]
    chunks += encoder.flush()
    loud_s = loud_samples(SEGMENTS[0]) / RATE
    assert sum(chunk.audio_s for chunk in chunks) >= loud_s - 1e-4


def test_the_first_message_of_mp3_comes_with_the_first_or_second_frame_after_that_of_pcm() -> None:
    def frames_until_sound(**fields: object) -> int:
        encoder = TurnEncoder(request(**fields), RATE)
        given = takewhile(lambda frame: not encoder.feed(frame), frames(VOICE))
        return len(list(given)) + 1

    assert frames_until_sound() == frames_until_sound(format="opus", sample_rate=48_000) == 2
    assert frames_until_sound(format="mp3", sample_rate=44_100) <= 3
    assert frames_until_sound(format="mp3", sample_rate=32_000, mp3_bitrate_kbps=64) <= 3


def test_silence_that_pushed_is_taken_from_the_quiet_that_follows() -> None:
    encoder = TurnEncoder(request(format="mp3", sample_rate=44_100), RATE)
    loud = SPEECH[: 2 * 12_000]
    for frame in frames(loud):
        encoder.feed(frame)
    encoder.flush()
    pushed_s = encoder.inserted_s
    assert 0.05 < pushed_s < 0.2
    encoder.feed(bytes(2 * 240))
    assert encoder.inserted_s == pytest.approx(pushed_s - 0.01)
    encoder.feed(bytes(2 * 12_000) + loud)
    assert encoder.inserted_s == 0.0


def test_quiet_behind_sound_is_never_taken() -> None:
    encoder = TurnEncoder(request(format="opus", sample_rate=48_000), RATE)
    loud = SPEECH[: 2 * 12_000]
    encoder.feed(loud)
    encoder.flush()
    pushed_s = encoder.inserted_s
    encoder.feed(loud + bytes(2 * 12_000) + loud)
    assert encoder.inserted_s == pytest.approx(pushed_s, abs=0.001)
    assert pushed_s > 0


def test_telephone_sound_has_no_least_size_and_its_own_silence() -> None:
    encoder = TurnEncoder(request(format="ulaw", sample_rate=8000), RATE)
    assert len(joined(encoder.feed(SPEECH[: 2 * 2400]))) < 1024
    quiet = TurnEncoder(request(format="ulaw", sample_rate=8000), RATE)
    assert set(joined(encode(quiet, bytes(48_000)))) == {0xFF}


def test_a_wav_without_sound_is_its_header() -> None:
    assert joined(TurnEncoder(request(format="wav"), RATE).finish())[:4] == b"RIFF"


def test_one_seed_is_one_sound_with_the_loudness_levelled_too() -> None:
    def spoken(size: int) -> bytes:
        encoder = TurnEncoder(request(prosody=Prosody()), RATE)
        chunks = [chunk for part in frames(VOICE, size) for chunk in encoder.feed(part)]
        return joined(chunks + encoder.finish())

    assert spoken(FRAME) == spoken(3 * FRAME + 2) != VOICE


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
            self._callbacks.get(timeout=30)()
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
    pool = EncodePool(1, loop.to_loop, ManualClock())
    lane, got, gate = pool.lane(), list[object](), threading.Event()
    lane.submit(lambda: [chunk(0)] * gate.wait(30), got.append)
    for number in range(1, 20):
        lane.submit(lambda number=number: [chunk(number)], got.append)
    assert lane.busy
    gate.set()
    loop.run_until(lambda: len(got) == 20)
    assert loop.calls <= 2
    pool.stop()


def test_nothing_that_is_done_waits_for_all_that_is_not() -> None:
    loop, clock = Loop(), ManualClock()
    pool = EncodePool(1, loop.to_loop, clock)
    lane, got, gate = pool.lane(), list[object](), threading.Event()

    def job(number: int) -> list[Chunk]:
        gate.wait(30)
        clock.tick(0.6 * BATCH_S)
        return [chunk(number)]

    for number in range(6):
        lane.submit(lambda number=number: job(number), got.append)
    gate.set()
    loop.run_until(lambda: len(got) == 6)
    assert got == [[chunk(number)] for number in range(6)]
    assert loop.calls == 3, "two of them take as long as a batch may"
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


def test_a_result_that_cannot_be_taken_fails_its_own_lane_only() -> None:
    loop = Loop()
    pool = EncodePool(1, loop.to_loop)
    lane, told, good, gate = pool.lane(), list[object](), list[object](), threading.Event()

    def take(result: object) -> None:
        told.append(result)
        if not isinstance(result, Exception):
            raise KeyError("no place for it")

    pool.lane().submit(lambda: [chunk(0)] * gate.wait(30), take)
    lane.submit(lambda: [chunk(1)], good.append)
    gate.set()
    loop.run_until(lambda: bool(good))
    assert told[0] == [chunk(0)] and isinstance(told[1], KeyError) and len(told) == 2
    assert good == [[chunk(1)]] and not lane.busy
    pool.stop()


def test_stop_finishes_what_is_queued_and_joins() -> None:
    loop = Loop()
    pool = EncodePool(2, loop.to_loop)
    lane, got = pool.lane(), list[object]()
    for _ in range(10):
        lane.submit(lambda: time.sleep(0.001) or [], got.append)
    pool.stop()
    loop.run_until(lambda: len(got) == 10)
