"""What is seen of speech: tones stand for words, so that every figure is known."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from shoal.loadtest.sound_shape import QUIETEST_DB, edges, picture, seam

RATE = 24_000


def tone(seconds: float, level: float = 0.3, hertz: float = 200.0) -> np.ndarray:
    time = np.arange(round(seconds * RATE)) / RATE
    return (level * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def quiet(seconds: float, level: float = 0.0) -> np.ndarray:
    random = np.random.default_rng(0)
    return (level * random.standard_normal(round(seconds * RATE))).astype(np.float32)


def test_what_lies_before_the_first_sound_and_behind_the_last_is_measured() -> None:
    found = edges(np.concatenate([quiet(0.1, 1e-3), tone(1.0), quiet(0.3, 1e-4)]), RATE)
    assert found.lead_s == pytest.approx(0.1, abs=0.006)
    assert found.trail_s == pytest.approx(0.3, abs=0.006)
    assert found.lead_db == pytest.approx(-60, abs=1)
    assert found.trail_db == pytest.approx(-80, abs=1)


def test_speech_that_is_cut_ends_above_nothing() -> None:
    found = edges(tone(0.5)[: -RATE // 800], RATE)
    assert found.last == pytest.approx(0.3, abs=0.01) and found.trail_s == 0.0
    assert found.lead_db == QUIETEST_DB


def test_silence_has_no_edges() -> None:
    for nothing in (quiet(0.0), quiet(1.0)):
        with pytest.raises(ValueError, match="no sound"):
            edges(nothing, RATE)


def test_a_pause_at_a_seam_is_found_and_a_click_in_it() -> None:
    sound = np.concatenate([tone(1.0), quiet(0.2, 1e-4), tone(0.5)])
    at = round(1.1 * RATE)
    found = seam(sound, RATE, at)
    assert found.pause_s == pytest.approx(0.2, abs=0.011)
    assert found.pause_db == pytest.approx(-80, abs=1)
    assert found.jump < 1e-3
    sound[at:] += 0.1
    clicked = seam(sound, RATE, at)
    assert clicked.jump == pytest.approx(0.1, abs=0.01) and clicked.usual < 0.03


def test_a_seam_without_a_pause_says_so() -> None:
    assert seam(tone(2.0), RATE, RATE).pause_s == 0.0
    late = np.concatenate([tone(2.0), quiet(0.3)])
    assert seam(late, RATE, RATE).pause_s == 0.0


def test_a_picture_is_dark_where_the_tone_is() -> None:
    data = picture(tone(0.5, hertz=2000.0), RATE, marks=[RATE // 4])
    assert data.startswith(b"\x89PNG")
    columns, rows = struct.unpack(">II", data[16:24])
    begin = data.index(b"IDAT")
    (size,) = struct.unpack(">I", data[begin - 4 : begin])
    lines = np.frombuffer(zlib.decompress(data[begin + 4 : begin + 4 + size]), np.uint8)
    image = lines.reshape(rows, columns + 1)[:, 1:]
    assert columns == pytest.approx(100, abs=1)
    assert int(image[:, 20].argmin()) == pytest.approx(rows * 0.75, abs=2)
    assert (image[::2, 50] == 0).all() and (image[:20, 20] == 255).all()
