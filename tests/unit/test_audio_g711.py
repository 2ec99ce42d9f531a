"""G.711 against what the standard's tables say, and against a decoder written from them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from shoal.realtime.audio.g711 import ALAW_SILENCE, ULAW_SILENCE, alaw, ulaw

ALL = np.arange(-32768, 32768, dtype=np.int32)


def s16(*samples: int) -> bytes:
    return np.array(samples, "<i2").tobytes()


def ulaw_values() -> npt.NDArray[np.int32]:
    """[256] the 16-bit sample of each code."""
    code = ~np.arange(256) & 0xFF
    magnitude = (((code & 0xF) << 3) + 0x84 << (code >> 4 & 7)) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int32)


def alaw_values() -> npt.NDArray[np.int32]:
    code = np.arange(256) ^ 0x55
    exponent, mantissa = code >> 4 & 7, code & 0xF
    step = np.where(exponent == 0, 0x8, 0x108)
    magnitude = (mantissa << 4) + step << np.maximum(exponent - 1, 0)
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int32)


@pytest.mark.parametrize(
    ("sample", "code"),
    [(0, 0xFF), (32767, 0x80), (-32768, 0x00), (-1, 0x7F), (1000, 0xCE), (-1000, 0x4E),
     (8, 0xFE), (132, 0xEF), (32124, 0x80), (-8, 0x7E)],
)  # fmt: skip
def test_known_codes_of_mu_law(sample: int, code: int) -> None:
    assert ulaw(s16(sample)) == bytes((code,))


@pytest.mark.parametrize(
    ("sample", "code"),
    [(0, 0xD5), (32767, 0xAA), (-32768, 0x2A), (-1, 0x55), (1000, 0xFA), (-1000, 0x7A),
     (8, 0xD5), (16, 0xD4), (256, 0xC5), (-256, 0x5A)],
)  # fmt: skip
def test_known_codes_of_a_law(sample: int, code: int) -> None:
    assert alaw(s16(sample)) == bytes((code,))


def half_steps(code: npt.NDArray[np.int32], first: int) -> npt.NDArray[np.int32]:
    """Half the distance between a code's value and the next in its segment."""
    return first << (code >> 4 & 7)


def test_every_sample_is_within_half_a_step_of_its_code_in_mu_law() -> None:
    codes = np.frombuffer(ulaw(ALL.astype("<i2").tobytes()), np.uint8).astype(np.int32)
    inside = np.abs(ALL) <= 32_635
    error = np.abs(ALL - ulaw_values()[codes])
    # The standard counts 14 bits: up to three of our sixteen are below its steps.
    assert (error - half_steps(~codes, 4))[inside].max() <= 3
    assert error.max() < 650


def test_every_sample_is_within_half_a_step_of_its_code_in_a_law() -> None:
    codes = np.frombuffer(alaw(ALL.astype("<i2").tobytes()), np.uint8).astype(np.int32)
    error = np.abs(ALL - alaw_values()[codes])
    exponent = (codes ^ 0x55) >> 4 & 7
    assert (error - (8 << np.maximum(exponent - 1, 0))).max() <= 0


@pytest.mark.parametrize(("law", "values"), [(ulaw, ulaw_values()), (alaw, alaw_values())])
def test_what_was_decoded_is_encoded_as_it_was(law: object, values: npt.NDArray[np.int32]) -> None:
    again = np.frombuffer(law(values.astype("<i2").tobytes()), np.uint8)  # type: ignore[operator]
    # Mu-law has two zeros.
    assert np.array_equal(values[again], values)


def test_silence() -> None:
    assert ulaw(bytes(4)) == 2 * ULAW_SILENCE
    assert alaw(bytes(4)) == 2 * ALAW_SILENCE
    assert ulaw(b"") == alaw(b"") == b""
