"""Speed without pitch: lengths, pitch, clicks, delay, and cuts that do not matter."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.realtime.audio.stretch import Stretch
from tests.speech import RATE, Wave, builtin_voice, pitches, read, vowel

SPEEDS = (0.5, 0.75, 0.9, 1.1, 1.5, 2.0)
MOST_DELAY_S = 0.06


def spoken(samples: Wave, speed: float, rate: int = RATE, piece: int = 1200) -> Wave:
    stretch = Stretch(rate, speed)
    out = [stretch.process(samples[at : at + piece]) for at in range(0, len(samples), piece)]
    return np.concatenate([*out, stretch.flush()])


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("count", [1, 100, 1200, 12_345, 48_000])
def test_the_length_is_exact(speed: float, count: int) -> None:
    assert len(spoken(vowel(120, 2.0)[:count], speed)) == round(count / speed)


def test_nothing_in_nothing_out() -> None:
    stretch = Stretch(RATE, 1.5)
    assert len(stretch.process(np.zeros(0, np.float32))) == len(stretch.flush()) == 0


@pytest.mark.parametrize("rate", [24_000, 44_100])
@pytest.mark.parametrize("hz", [90.0, 140.0, 220.0])
@pytest.mark.parametrize("speed", SPEEDS)
def test_a_vowel_keeps_its_pitch_and_its_loudness(speed: float, hz: float, rate: int) -> None:
    samples = vowel(hz, 1.5, rate)
    out = spoken(samples, speed, rate)
    at_s = np.arange(0.1, 1.5 / speed - 0.1, 0.02)
    assert pitches(out, rate, at_s) == pytest.approx(np.full(len(at_s), hz), rel=0.02)
    assert np.sqrt((out**2).mean() / (samples**2).mean()) == pytest.approx(1.0, abs=0.03)
    # Two periods joined where they differ would jump more than the wave itself ever does.
    assert np.abs(np.diff(out)).max() < 1.05 * np.abs(np.diff(samples)).max()


@pytest.mark.parametrize(
    "recording",
    ["builtin.ogg", "voices/default.ogg", "voices/george.ogg", "voices/michael.ogg"],
)
@pytest.mark.parametrize("speed", SPEEDS)
def test_speech_keeps_its_melody_at_its_times(speed: float, recording: str) -> None:
    samples = read(recording)
    out = spoken(samples, speed)
    at_s = np.arange(0.1, len(samples) / RATE - 0.1, 0.02)
    # Half a piece is heard at its own pace before the next begins where it should.
    early_s = 0.0075 * (speed - 1)
    before = pitches(samples, RATE, at_s - early_s)
    after = pitches(out, RATE, at_s / speed)
    both = ~(np.isnan(before) | np.isnan(after))
    assert both.sum() > 0.5 * (~np.isnan(before)).sum() > 20
    assert float(np.median(after[both] / before[both])) == pytest.approx(1.0, abs=0.02)
    assert np.abs(np.diff(out)).max() < 1.1 * np.abs(np.diff(samples)).max()


@pytest.mark.parametrize("speed", SPEEDS)
def test_it_holds_back_little(speed: float) -> None:
    stretch, given_s, out_s, most_s = Stretch(RATE, speed), 0.0, 0.0, 0.0
    samples = builtin_voice()
    for at in range(0, len(samples), 120):
        given_s += len(samples[at : at + 120]) / RATE
        out_s += len(stretch.process(samples[at : at + 120])) / RATE
        most_s = max(most_s, given_s - out_s * speed)
    assert 0 < most_s <= MOST_DELAY_S


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 30_000), max_size=10), speed=st.sampled_from(SPEEDS))
def test_any_cut_gives_the_same_samples(cuts: list[int], speed: float) -> None:
    samples = builtin_voice()[:30_000]
    edges = [0, *sorted(cuts), len(samples)]
    stretch = Stretch(RATE, speed)
    out = [stretch.process(samples[a:b]) for a, b in itertools.pairwise(edges)]
    whole = spoken(samples, speed, piece=len(samples))
    assert np.array_equal(np.concatenate([*out, stretch.flush()]), whole)


def test_after_a_flush_it_begins_anew() -> None:
    samples = builtin_voice()[:24_000]
    stretch = Stretch(RATE, 1.25)
    first = np.concatenate((stretch.process(samples), stretch.flush()))
    again = np.concatenate((stretch.process(samples), stretch.flush()))
    assert np.array_equal(first, again)


def test_silence_stays_silence() -> None:
    assert not spoken(np.zeros(10_000, np.float32), 0.7).any()
