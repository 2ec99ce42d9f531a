"""What the tiers below the device keep, for how long, and what they survive."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from shoal.engine.prompt import PromptReference
from shoal.engine.runner import Int32Array
from shoal.engine.tiers import CodesTier, ColdTier


def codes(number: int, frames: int = 25) -> Int32Array:
    return np.random.default_rng(number).integers(0, 1024, (frames, 4)).astype(np.int32)


def recording(number: int) -> bytes:
    return f"recording {number}".encode()


def test_the_codes_tier_is_bounded_in_bytes() -> None:
    tier = CodesTier(3 * 402)
    voices = [(PromptReference("é", codes(number)),) for number in range(5)]
    for number, voice in enumerate(voices):
        tier.keep(bytes([number]), voice)
        tier.find(b"\0")
    found = [tier.find(bytes([number])) is not None for number in range(5)]
    assert found == [True, False, False, True, True]
    stats = tier.stats()
    assert (stats.entries, stats.bytes, stats.evictions) == (3, 3 * 402, 2)
    assert (stats.hits, stats.misses) == (5 + 3, 2)


def test_a_voice_larger_than_the_codes_tier_is_kept_until_the_next() -> None:
    tier = CodesTier(1)
    tier.keep(b"a", (PromptReference("", codes(1)),))
    assert tier.find(b"a") is not None
    tier.keep(b"b", (PromptReference("", codes(2)),), promoted=True)
    assert tier.find(b"a") is None and tier.find(b"b") is not None
    assert tier.stats().promotions == 1


def test_codes_outlive_the_process_under_their_codec_and_content(tmp_path: Path) -> None:
    ColdTier(tmp_path / "codes", "one", 1 << 20).keep(recording(1), codes(1))
    tier = ColdTier(tmp_path / "codes", "one", 1 << 20)
    found = tier.find(recording(1))
    assert found is not None and found.dtype == np.int32 and np.array_equal(found, codes(1))
    assert tier.find(recording(2)) is None
    assert ColdTier(tmp_path / "codes", "other", 1 << 20).find(recording(1)) is None
    assert (tier.stats().entries, tier.stats().bytes > 0) == (1, True)
    # Codes can be made to speak: they are nobody else's business.
    assert (tmp_path / "codes").stat().st_mode & 0o077 == 0


def test_the_cold_tier_lets_go_of_what_was_used_longest_ago(tmp_path: Path) -> None:
    tier = ColdTier(tmp_path, "codec", 1 << 20)
    tier.keep(recording(0), codes(0))
    size = tier.stats().bytes
    limit = 4 * size + 40
    tier = ColdTier(tmp_path, "codec", limit)
    for number in range(1, 4):
        tier.keep(recording(number), codes(number))
        age(tmp_path, 10)
    assert tier.stats().evictions == 0
    assert tier.find(recording(0)) is not None  # which makes it the one used last
    tier.keep(recording(4), codes(4))
    stats = tier.stats()
    assert stats.bytes <= limit and stats.evictions == 2
    assert [tier.find(recording(number)) is not None for number in range(5)] == [
        True, False, False, True, True,
    ]  # fmt: skip
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == stats.bytes


def test_a_folder_that_is_too_full_is_tidied_when_it_is_opened(tmp_path: Path) -> None:
    tier = ColdTier(tmp_path, "codec", 1 << 20)
    for number in range(6):
        tier.keep(recording(number), codes(number))
    (tmp_path / ".new-abandoned").write_bytes(b"half a file")
    age(tmp_path, 7200)
    (tmp_path / ".new-at-work").write_bytes(b"half a file")
    size = tier.stats().bytes // 6
    smaller = ColdTier(tmp_path, "codec", 3 * size)
    assert smaller.stats().entries == 2 and smaller.stats().evictions == 4
    assert [path.name for path in tmp_path.glob(".new-*")] == [".new-at-work"]


def test_a_damaged_file_is_as_good_as_none_and_is_replaced(tmp_path: Path) -> None:
    tier = ColdTier(tmp_path, "codec", 1 << 20)
    tier.keep(recording(1), codes(1))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", b"PK", whole[: len(whole) // 2], flipped(whole, len(whole) // 3)):
        path.write_bytes(damaged)
        assert tier.find(recording(1)) is None
    tier.keep(recording(1), codes(1))
    assert tier.find(recording(1)) is not None


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "codes").write_text("a file where a folder belongs")
    tier = ColdTier(tmp_path / "codes", "codec", 1 << 20)
    assert tier.find(recording(1)) is None
    with pytest.raises(OSError, match=r".*"):
        tier.keep(recording(1), codes(1))


def age(folder: Path, seconds: float) -> None:
    """Everything in ``folder`` was last used so much longer ago."""
    for path in folder.iterdir():
        about = path.stat()
        os.utime(path, (about.st_atime - seconds, about.st_mtime - seconds))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
