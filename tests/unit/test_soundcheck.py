"""What passes for a voice and what does not: recordings of people, and sounds of known kind."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile  # pyright: ignore[reportMissingTypeStubs]
import soxr  # pyright: ignore[reportMissingTypeStubs]

from shoal.engine.soundcheck import (
    clipped_share,
    is_above_voices,
    is_noise,
    is_tone,
    reference_doubt,
    sound_s,
    voice_band,
)

Samples = npt.NDArray[np.float32]
RECORDINGS = sorted((Path(__file__).parents[1] / "data").glob("**/*.ogg"))
PEOPLE = [path for path in RECORDINGS if path.parent.name == "voices"]
RATE = 24_000


def speech(path: Path, rate: int = RATE) -> Samples:
    samples, own = soundfile.read(path, dtype="float32")
    return soxr.resample(samples / np.abs(samples).max(), own, rate).astype(np.float32)


def noise(seconds: float, slope: float = 0.0) -> Samples:
    """Power falls with frequency to the power of ``slope``: 0 white, 1 pink."""
    count = int(RATE * seconds)
    spectrum = np.fft.rfft(np.random.default_rng(3).standard_normal(count))
    spectrum /= np.maximum(1, np.arange(len(spectrum))) ** (slope / 2)
    wave = np.fft.irfft(spectrum, count)
    return (0.1 * wave / wave.std()).astype(np.float32)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("rate", [8000, 24_000, 44_100])
def test_people_are_no_noise_whatever_the_rate(path: Path, rate: int) -> None:
    samples = speech(path, rate)
    assert not is_noise(voice_band(samples, rate))
    assert clipped_share(samples) < 0.01


@pytest.mark.parametrize("path", PEOPLE, ids=lambda path: path.stem)
def test_people_in_noise_and_whispering_are_heard(path: Path) -> None:
    samples = speech(path)
    level = float(np.sqrt((samples**2).mean()))
    hiss = noise(len(samples) / RATE + 1)[: len(samples)] * 10
    assert not is_noise(
        voice_band((samples + level * 10 ** (-5 / 20) * hiss).astype(np.float32), RATE)
    )
    envelope = np.sqrt(np.convolve(samples**2, np.full(400, 1 / 400), "same"))
    assert not is_noise(voice_band((envelope * hiss).astype(np.float32), RATE))


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seconds", [1.0, 5.0, 59.0])
def test_a_steady_hiss_is_noise(slope: float, seconds: float) -> None:
    assert is_noise(voice_band(noise(seconds, slope), RATE))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("rate", [8000, 24_000, 44_100])
def test_people_are_no_tone_and_mostly_sound(path: Path, rate: int) -> None:
    samples = speech(path, rate)
    seconds = len(samples) / rate
    assert not is_tone(voice_band(samples, rate))
    assert 0.6 * seconds < sound_s(samples, rate) <= seconds
    hum = 0.01 * np.sin(np.arange(len(samples)) * 2 * np.pi * 50 / rate)
    assert not is_tone(voice_band((samples + hum).astype(np.float32), rate))


@pytest.mark.parametrize("hertz", [50, 60, 100, 440, 1000, 3000])
def test_a_tone_is_one_with_silence_around_it_too(hertz: int) -> None:
    wave = np.sin(np.arange(2 * RATE) * 2 * np.pi * hertz / RATE).astype(np.float32)
    assert is_tone(voice_band(wave, RATE))
    assert is_tone(voice_band(np.concatenate([wave, 0 * wave, wave]).astype(np.float32), RATE))


@pytest.mark.parametrize("rate", [8000, 16_000, RATE, 44_100, 48_000])
@pytest.mark.parametrize("gain", [1.0, 0.003])
def test_no_tone_up_to_the_highest_of_its_rate_is_a_voice(rate: int, gain: float) -> None:
    tones = [hertz for hertz in (100, 440, 3000, 3700, *range(3900, 24_000, 550))]
    for hertz in [hertz for hertz in tones if hertz < 0.49 * rate]:
        for seconds in (1.0, 3.0):
            wave = gain * np.sin(np.arange(int(seconds * rate)) * 2 * np.pi * hertz / rate)
            for samples in (wave, np.round(32767 * wave) / 32768, [*wave, *0 * wave, *wave]):
                heard = np.asarray(samples, np.float32)
                high = is_above_voices(voice_band(heard, rate), heard, rate)
                assert high or is_tone(voice_band(heard, rate)), (hertz, seconds)
                assert high == (hertz > 4100) or 3800 < hertz < 4100, (hertz, seconds)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("rate", [8000, 44_100])
@pytest.mark.parametrize(
    ("lowest", "highest"), [(0, 24_000), (300, 3400), (0, 400), (1000, 8000)], ids=str
)
@pytest.mark.parametrize("gain", [1.0, 0.003])
def test_people_are_voices_in_any_band_and_however_quiet(
    path: Path, rate: int, lowest: int, highest: int, gain: float
) -> None:
    """``300, 3400`` is what a telephone lets through."""
    whole = gain * speech(path, rate)
    spectrum, hertz = np.fft.rfft(whole), np.fft.rfftfreq(len(whole), 1 / rate)
    spectrum[(hertz < lowest) | (hertz > highest)] = 0
    samples = np.fft.irfft(spectrum, len(whole))
    heard = (np.round(32767 * samples) / 32768).astype(np.float32)
    assert not is_above_voices(voice_band(heard, rate), heard, rate)
    assert not is_tone(voice_band(heard, rate))
    assert not is_noise(voice_band(heard, rate))


def test_a_recording_at_a_high_rate_is_not_copied() -> None:
    """A minute of it, which is accepted, has 92 MB."""
    samples = np.resize(0.1 * noise(1.0), 384_000 * 5).astype(np.float32)
    tracemalloc.start()
    try:
        is_above_voices(voice_band(samples, 384_000), samples, 384_000)
        assert tracemalloc.get_traced_memory()[1] < samples.nbytes / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("hiss", [0.0, 1e-4, 1e-3])
def test_silence_around_speech_does_not_count(hiss: float) -> None:
    samples = speech(PEOPLE[0])[:RATE]
    alone = sound_s(samples, RATE)
    around = np.concatenate([np.zeros(20 * RATE), samples, np.zeros(19 * RATE)])
    around += hiss * np.random.default_rng(1).standard_normal(len(around))
    assert 0.7 < alone <= 1.0
    assert sound_s(around.astype(np.float32), RATE) == pytest.approx(alone, abs=0.05)
    around[5 * RATE] = 1.0  # a knock
    assert sound_s(around.astype(np.float32), RATE) == pytest.approx(alone, abs=0.1)
    assert sound_s(np.zeros(0, np.float32), RATE) == 0.0


def test_a_tone_is_not_noise() -> None:
    wave = np.sin(np.arange(RATE) * 2 * np.pi * 220 / RATE).astype(np.float32)
    assert not is_noise(voice_band(wave, RATE)) and clipped_share(wave) == 0.0


@pytest.mark.parametrize("path", PEOPLE, ids=lambda path: path.stem)
def test_the_more_is_cut_off_the_larger_the_share(path: Path) -> None:
    samples = speech(path)
    shares = [
        clipped_share((0.5 * np.clip(samples * 10 ** (gain_db / 20), -1, 1)).astype(np.float32))
        for gain_db in (0, 6, 12, 20, 30)
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.01 and shares[1] < 0.2 and shares[2] < 0.4 < shares[3]


def test_coarse_steps_are_not_taken_for_clipping() -> None:
    samples = speech(RECORDINGS[0], 8000)
    coarse = (np.round(samples * 127) / 128).astype(np.float32)
    assert clipped_share(coarse) < 0.05


@pytest.mark.parametrize(
    ("text", "seconds", "doubt"),
    [
        ("The museum is closed on Mondays, but the library stays open until six.", 4.5, ""),
        ("The museum is closed on Mondays, but the library stays open until six.", 1.0, "too long"),
        ("The museum is closed on Mondays, but the library stays open until six.", 55.0, "short"),
        ("博物馆星期一闭馆，但图书馆一直开放到六点。", 4.5, ""),
        ("博物馆星期一闭馆，但图书馆一直开放到六点。", 1.2, "too long"),
        ("Yes.", 1.5, "1.5 s of reference audio are little"),
        ("Yes, please.", 3.0, ""),
        ("", 3.0, "empty"),
        ("[laughs] ...", 30.0, "too short"),
    ],
)
def test_a_transcript_has_a_pace(text: str, seconds: float, doubt: str) -> None:
    found = reference_doubt([text], [seconds])
    assert (doubt in found) if doubt else not found


def test_the_transcript_in_doubt_is_named() -> None:
    found = reference_doubt(["Fine, fine.", "word " * 99], [1.0, 2.0])
    assert found.startswith("transcript 2 is too long")
