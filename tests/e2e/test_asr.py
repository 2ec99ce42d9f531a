"""What the built-in voice says is understood: Whisper writes it down, the words are counted.

The whole product at work: a server process, sockets, the real model, fixed seeds.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from shoal.loadtest.asr_wer import (
    NoRecogniser,
    Recogniser,
    listen,
    speak_all,
    word_error_rate,
)

SENTENCES = (Path(__file__).parents[1] / "data" / "sents20.txt").read_text().splitlines()
MOST_WRONG = 0.10


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    try:
        return Recogniser()
    except NoRecogniser as missing:
        if os.environ.get("CI"):
            pytest.fail(f"CI must recognise speech: {missing}")
        pytest.skip(str(missing))


@pytest.mark.timeout(600)
def test_twenty_sentences_are_understood(built_in: str, recogniser: Recogniser) -> None:
    takes = asyncio.run(speak_all(built_in, SENTENCES, "", "", first_seed=0, together=2))
    assert all(1.0 < take.audio_s < 12.0 for take in takes), [take.audio_s for take in takes]
    results = listen(takes, SENTENCES, recogniser)
    rate = word_error_rate(results)
    worst = sorted(results, key=lambda r: r.errors / r.words)[-3:]
    assert rate <= MOST_WRONG, f"WER {rate:.1%}; worst: {worst}"
