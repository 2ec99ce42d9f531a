"""Counting words: the normaliser, the edit distance, and the rate over many sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile  # pyright: ignore[reportMissingTypeStubs]

from shoal.loadtest.asr_wer import (
    ASR_RATE,
    at_asr_rate,
    compare,
    normal_words,
    read_recordings,
    word_error_rate,
    word_errors,
)

SENTENCES = Path(__file__).parents[1] / "data" / "sents20.txt"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("$42.17", "forty two dollars and seventeen cents"),
        ("Wednesday, the 3rd of March!", "wednesday the third of march"),
        ("at 9:30", "at nine thirty"),
        ("1,200,000", "one million two hundred thousand"),
        ("in 1999", "in nineteen ninety nine"),
        ("5% off", "five percent off"),
        ("Wednesday, 3 March", "wednesday the third of march"),
        ("paid on 2nd of April", "paid on the second of april"),
        ("before 5 p.m.", "before 5pm"),
        ("7 a.m. today", "seven am today"),
        ("dropped to -5", "dropped to minus five"),
        ("pages 3-5", "pages three five"),
        ("It’s a well-known fact", "it's a well known fact"),
    ],
)
def test_two_ways_to_write_the_same_words(text: str, same: str) -> None:
    assert normal_words(text) == normal_words(same)


@pytest.mark.parametrize(
    ("reference", "heard", "errors"),
    [
        ("a b c d", "a b c d", 0),
        ("a b c d", "a x c d", 1),
        ("a b c d", "a c d", 1),
        ("a b c d", "a b b c d", 1),
        ("a b c d", "", 4),
        ("", "a b", 2),
        ("a b c d", "d c b a", 4),
    ],
)
def test_the_least_number_of_edits(reference: str, heard: str, errors: int) -> None:
    assert word_errors(reference.split(), heard.split()) == errors
    assert word_errors(heard.split(), reference.split()) == errors


def test_the_rate_weighs_sentences_by_their_words() -> None:
    results = [compare("one two three four", "one two three four"), compare("five six", "")]
    assert word_error_rate(results) == pytest.approx(2 / 6)


def test_there_are_twenty_sentences_without_digits() -> None:
    lines = SENTENCES.read_text().splitlines()
    assert len(lines) == 20
    assert not any(character.isdigit() for line in lines for character in line)


@pytest.mark.parametrize("rate", [8000, 16000, 24000, 44100])
def test_a_tone_is_the_same_tone_at_the_recognisers_rate(rate: int) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)
    heard = np.frombuffer(at_asr_rate(tone, rate), "<i2") / 32767
    wanted = 0.5 * np.sin(2 * np.pi * 440 * np.arange(ASR_RATE) / ASR_RATE)
    assert len(heard) == ASR_RATE
    assert np.abs(heard - wanted).max() < 2e-3


def test_what_the_recogniser_cannot_hear_is_gone() -> None:
    tone = 0.5 * np.sin(2 * np.pi * 10_000 * np.arange(24_000) / 24_000).astype(np.float32)
    heard = np.frombuffer(at_asr_rate(tone, 24_000), "<i2")
    assert np.abs(heard).max() < 100
    assert at_asr_rate(np.zeros(0, np.float32), 24_000) == b""


def test_recordings_are_read_in_the_order_of_the_sentences(tmp_path: Path) -> None:
    for number in range(3):
        both = np.full((100, 2), 0.1 * number, np.float32)
        soundfile.write(tmp_path / f"{number:02d}.wav", both, ASR_RATE, subtype="PCM_16")
    levels = [np.frombuffer(pcm, "<i2").mean() for pcm in read_recordings(tmp_path, 3)]
    assert levels == pytest.approx([0, 3277, 6553], abs=2)
    with pytest.raises(FileNotFoundError, match=r"03\.wav is missing"):
        read_recordings(tmp_path, 4)
