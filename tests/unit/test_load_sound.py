"""What the samples show, with samples made to show it."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.loadtest.measure.sound import SILENCE_DBFS, SoundMeter, level_dbfs

RATE = 8000


def pcm(*samples: int) -> bytes:
    return np.array(samples, dtype="<i2").tobytes()


def metered(*chunks: bytes) -> SoundMeter:
    meter = SoundMeter(RATE)
    for chunk in chunks:
        meter.feed(chunk)
    return meter


def test_the_first_sample_above_minus_50_dbfs_is_audible() -> None:
    # -50 dBFS is 32768 * 10^-2.5 = 103.6
    assert metered(pcm(0, 103, -103, -104, 0)).result().first_audible_sample == 3


def test_it_is_counted_over_chunks() -> None:
    assert metered(pcm(*[0] * 10), pcm(0, 0, 500)).result().first_audible_sample == 12


def test_silence_is_never_audible() -> None:
    found = metered(pcm(*[90] * 100)).result()
    assert found.first_audible_sample is None
    assert found.peak == 90


def test_the_most_negative_sample_has_a_peak_too() -> None:
    assert metered(pcm(-32768)).result().peak == 32768


@pytest.mark.parametrize(
    ("chunks", "clipped"),
    [
        ([pcm(32767, 32767, 0)], 0),
        ([pcm(0, 32767, 32767, 32767, 0)], 3),
        ([pcm(0, -32768, -32768), pcm(-32768, -32768, 5)], 4),
        ([pcm(32767, 32767, 0, 32767, 32767)], 0),
        ([pcm(32767, 32767, 32767, 0), pcm(32767, 32767, 32767)], 6),
    ],
)
def test_three_full_samples_in_a_row_are_clipping(chunks: list[bytes], clipped: int) -> None:
    assert metered(*chunks).result().clipped_samples == clipped


def test_the_tail_is_the_last_ten_milliseconds_over_chunks() -> None:
    loud, quiet = pcm(*[3277] * 400), pcm(*[0] * 80)
    assert metered(loud, quiet).result().tail_dbfs == SILENCE_DBFS
    assert metered(quiet, loud).result().tail_dbfs == pytest.approx(-20.0, abs=0.01)
    # half of the last 80 samples loud: 3 dB less
    half = metered(loud, pcm(*[0] * 40)).result().tail_dbfs
    assert half == pytest.approx(-23.01, abs=0.01)


def test_nothing_heard_has_no_tail() -> None:
    assert metered().result().tail_dbfs is None
    assert metered(b"").result().tail_dbfs is None


def test_the_unpackers_counts_are_passed_on() -> None:
    found = metered(pcm(1)).result(leftover_bytes=1, repeated_headers=2)
    assert (found.leftover_bytes, found.repeated_headers) == (1, 2)


def test_level_of_a_full_scale_square_wave_is_zero() -> None:
    assert level_dbfs(np.array([-32768, -32768], dtype=np.int16)) == 0.0
    assert level_dbfs(np.zeros(0, dtype=np.int16)) == SILENCE_DBFS
