"""One loudness: how near, how slowly, without delay and without clipping."""

from __future__ import annotations

import itertools
import time

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.realtime.audio.loudness import (
    FIRST_DB_PER_S,
    LATER_DB_PER_S,
    MOST_DB,
    TARGET_LUFS,
    Loudness,
)
from tests.speech import RATE, Wave, builtin_voice, db, read, vowel

RECORDINGS = ("builtin.ogg", "voices/default.ogg", "voices/george.ogg", "voices/michael.ogg")
MOST_MS_A_CHUNK = 0.2


def whole(samples: Wave) -> npt.NDArray[np.int16]:
    return np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)


def levelled(samples: Wave, rate: int = RATE) -> tuple[Wave, npt.NDArray[np.float64]]:
    """The output, and the gain in dB after every 10 ms."""
    loudness, out, gains = Loudness(rate), list[Wave](), list[float]()
    given = whole(samples)
    for at in range(0, len(samples), rate // 100):
        out.append(loudness.process(given[at : at + rate // 100]).astype(np.float32) / 32768)
        gains.append(loudness.gain_db)
    return np.concatenate(out), np.array(gains)


def louder(samples: Wave, by_db: float) -> Wave:
    return (samples * 10 ** (by_db / 20)).astype(np.float32)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_quiet_and_loud_versions_come_out_alike(recording: str) -> None:
    samples = read(recording)
    loudest = -20 * np.log10(np.abs(samples).max())  # as loud as it was ever recorded
    outs = [levelled(louder(samples, by))[0] for by in (-4.0, 0.0, min(4.0, loudest))]
    levels = [db(out) for out in outs]
    assert max(levels) - min(levels) < 1.5
    later = [db(out[RATE:]) for out in outs]
    assert max(later) - min(later) < 0.7


def test_a_much_too_quiet_voice_is_nearly_there_within_a_second() -> None:
    samples = builtin_voice()
    as_it_is, quiet = levelled(samples)[0], levelled(louder(samples, -8.0))[0]
    assert db(quiet) == pytest.approx(db(as_it_is), abs=1.5)


def test_the_target_is_what_it_says() -> None:
    """A 1 kHz tone: there, weighing adds what the offset takes away (to 0.1 dB without the
    filter that is left out), so its mean square is its loudness."""
    tone = (0.05 * np.sin(2 * np.pi * 1000 * np.arange(10 * RATE) / RATE)).astype(np.float32)
    out, _ = levelled(tone)
    assert 10 * np.log10((out[8 * RATE :] ** 2).mean()) == pytest.approx(TARGET_LUFS, abs=0.3)


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("by_db", [-12.0, 0.0, 6.0])
def test_the_gain_moves_slowly_and_does_not_pump(recording: str, by_db: float) -> None:
    samples = louder(read(recording), by_db)
    _, gains = levelled(np.concatenate((samples, samples)))
    steps = np.abs(np.diff(gains, prepend=0.0)) * 100
    assert steps.max() <= FIRST_DB_PER_S + 1e-6
    assert steps[200:].max() <= LATER_DB_PER_S + 1e-6
    assert np.abs(gains).max() <= MOST_DB
    settled = gains[len(gains) // 2 :]
    assert settled.max() - settled.min() < 2.0


def test_it_stands_still_in_pauses() -> None:
    speech, pause = builtin_voice()[: 2 * RATE], np.zeros(2 * RATE, np.float32)
    hiss = (1e-4 * np.random.default_rng(0).standard_normal(2 * RATE)).astype(np.float32)
    _, gains = levelled(np.concatenate((speech, pause, hiss)))
    assert np.ptp(gains[210:]) == 0.0


def test_loud_input_never_reaches_full_scale_and_soft_input_is_not_bent() -> None:
    shout, _ = levelled(np.clip(vowel(150, 1.0) * 20, -1, 1))
    assert 0.7 < np.abs(shout).max() < 1.0
    soft = (vowel(150, 1.0) * np.float32(0.3)).astype(np.float32)
    out, gains = levelled(soft)
    ramp = np.interp(np.arange(len(soft)), np.arange(len(gains)) * 240 + 480, gains)
    assert np.abs(out - soft * 10 ** (ramp / 20)).max() < 0.01


def test_it_has_no_delay() -> None:
    loudness = Loudness(RATE)
    samples = whole(builtin_voice())
    assert [len(loudness.process(samples[:n])) for n in (0, 1, 239, 240, 241, 5000)] == [
        0, 1, 239, 240, 241, 5000,
    ]  # fmt: skip
    click = np.zeros(2400, np.float32)
    click[1234] = 0.5
    out, _ = levelled(click)
    assert np.flatnonzero(out).tolist() == [1234]


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 30_000), max_size=10))
def test_any_cut_gives_the_same_samples(cuts: list[int]) -> None:
    samples = whole(builtin_voice()[:30_000])
    loudness = Loudness(RATE)
    edges = [0, *sorted(cuts), len(samples)]
    out = [loudness.process(samples[a:b]) for a, b in itertools.pairwise(edges)]
    assert np.array_equal(np.concatenate(out), Loudness(RATE).process(samples))


def test_it_costs_little() -> None:
    loudness, samples, took_s = Loudness(RATE), whole(builtin_voice()), list[float]()
    for at in range(0, len(samples) - 1200, 1200):
        started_s = time.thread_time()
        loudness.process(samples[at : at + 1200])
        took_s.append(time.thread_time() - started_s)
    # The quickest tenth: what it costs, not what else the machine is doing.
    assert sorted(took_s)[len(took_s) // 10] * 1000 < MOST_MS_A_CHUNK
