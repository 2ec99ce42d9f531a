"""The tier of KV in the host's memory: what is copied there, what goes, and what must stay."""

from __future__ import annotations

import random

from shoal.engine.pages import PagePool
from shoal.engine.prefixes import Prefix, PrefixCache
from shoal.engine.warm import WarmTier

PLENTY = 1000


class Device:
    """The hot tier beside a warm one; copies end at once when they are asked to."""

    def __init__(self, host_pages: int, pages: int = 100, limit: int = 100) -> None:
        self.pool = PagePool(pages)
        self.hot = PrefixCache(self.pool, limit)
        self.warm = WarmTier(host_pages, page_bytes=10)

    def speak(self, name: bytes, pages: int = 2) -> None:
        """Somebody asks for a voice; all that may be copied is, afterwards."""
        self.warm.used(name)
        if self.hot.find(name) is None:
            lent = self.warm.lend(name)
            taken = self.pool.take(pages)
            assert taken is not None
            self.hot.add(name, 8 * pages, taken).ready = True
            self.warm.give_back(name, lent, damaged=False)
        while self.save() is not None:
            pass

    def save(self) -> Prefix | None:
        begun = self.warm.begin_save(self.hot, PLENTY)
        if begun is None:
            return None
        prefix, kept = begun
        assert len(kept.pages) == len(prefix.pages)
        self.warm.saved(prefix.key, error=False)
        return prefix

    def kept(self) -> set[bytes]:
        return {bytes([n]) for n in range(256) if bytes([n]) in self.warm}


def names(*numbers: int) -> set[bytes]:
    return {bytes([number]) for number in numbers}


def test_without_memory_there_is_no_tier() -> None:
    device = Device(0)
    for name in names(1, 2, 3):
        device.speak(name)
    assert len(device.warm) == 0 and device.warm.stats().limit_bytes == 0
    assert device.warm.lend(b"\1") == ()


def test_what_the_device_lets_go_next_is_copied_and_what_it_keeps_is_not() -> None:
    device = Device(host_pages=8)
    for number in range(1, 11):
        device.speak(bytes([number]))
    # Half of the memory for those, the oldest.
    assert device.kept() == names(1, 2)
    device.speak(b"\1")  # now it is the last to go
    assert device.kept() == names(1, 2, 3)


def test_a_voice_let_go_is_found_and_lent_until_it_is_given_back() -> None:
    device = Device(host_pages=8, limit=4)
    for number in (1, 2, 3):
        device.speak(bytes([number]))
    assert device.hot.find(b"\1") is None
    pages = device.warm.lend(b"\1")
    assert len(pages) == 2
    # Others come and go: what is lent stays.
    for number in range(4, 20):
        device.speak(bytes([number]))
    assert b"\1" in device.warm
    device.warm.give_back(b"\1", pages, damaged=False)
    for number in range(20, 30):
        device.speak(bytes([number]))
    assert b"\1" not in device.warm


def test_what_cannot_be_used_is_forgotten() -> None:
    device = Device(host_pages=8, limit=2)
    device.speak(b"\1")
    device.speak(b"\2")
    pages = device.warm.lend(b"\1")
    device.warm.give_back(b"\1", pages, damaged=True)
    assert device.kept() == names(2)
    assert device.warm.stats().bytes == 2 * 10


def test_the_longest_unused_goes_first() -> None:
    device = Device(host_pages=6, limit=2)
    for number in (1, 2, 3):
        device.speak(bytes([number]))
    assert device.kept() == names(1, 2, 3)
    device.speak(b"\1")
    device.speak(b"\4")
    assert device.kept() == names(1, 3, 4)
    stats = device.warm.stats()
    assert (stats.hits, stats.misses, stats.evictions, stats.promotions) == (1, 4, 1, 4)
    assert (stats.entries, stats.bytes, stats.limit_bytes) == (3, 60, 60)


def test_a_second_copy_goes_before_the_only_one() -> None:
    """1 is on the device for long; 2 and 3 are nowhere else."""
    device = Device(host_pages=6, limit=4)
    for number in (1, 2, 3):
        device.speak(bytes([number]))
    device.speak(b"\1")
    device.speak(b"\4")  # the device: 1 and 4, of which 1 goes next
    assert b"\1" in device.kept()
    device.speak(b"\1")  # of which 4 goes next
    assert device.hot.has(b"\1") and device.hot.has(b"\4")
    device.save()
    assert device.kept() == names(2, 3, 4)


def test_a_copy_that_is_not_finished_is_not_lent_and_does_not_go() -> None:
    device = Device(host_pages=4, limit=2)
    pages = device.pool.take(2)
    assert pages is not None
    device.hot.add(b"\1", 16, pages).ready = True
    begun = device.warm.begin_save(device.hot, PLENTY)
    assert begun is not None
    assert device.warm.lend(b"\1") == ()
    for number in range(2, 9):
        device.speak(bytes([number]))
    assert b"\1" in device.warm
    device.warm.saved(b"\1", error=True)
    assert b"\1" not in device.warm


def test_voices_too_large_for_the_memory_or_for_now_are_passed_over() -> None:
    device = Device(host_pages=4)
    device.speak(b"\1", pages=5)
    device.speak(b"\2", pages=1)
    device.speak(b"\3", pages=1)
    assert b"\1" not in device.warm
    device = Device(host_pages=8)
    for name, count in ((b"\1", 3), (b"\2", 1)):
        taken = device.pool.take(count)
        assert taken is not None
        device.hot.add(name, 8 * count, taken).ready = True
    begun = device.warm.begin_save(device.hot, 2)
    assert begun is not None and begun[0].key == b"\2"


def test_pinned_and_unwritten_voices_are_not_copied() -> None:
    device = Device(host_pages=8)
    for name, pinned in ((b"\1", True), (b"\2", False)):
        taken = device.pool.take(1)
        assert taken is not None
        entry = device.hot.add(name, 8, taken)
        entry.pinned = entry.ready = pinned
    assert device.save() is None


def test_the_bound_holds_and_no_page_is_lost_whatever_comes() -> None:
    for seed in range(30):
        draw = random.Random(seed)
        host_pages = draw.randrange(1, 30)
        device = Device(host_pages, limit=draw.randrange(2, 30))
        sizes = [draw.randrange(1, 8) for _ in range(20)]
        lent: list[tuple[bytes, tuple[int, ...]]] = []
        for _ in range(200):
            number = draw.randrange(20)
            device.speak(bytes([number]), sizes[number])
            if draw.random() < 0.3 and (pages := device.warm.lend(bytes([number]))):
                assert len(pages) == sizes[number]
                lent.append((bytes([number]), pages))
            if lent and draw.random() < 0.3:
                device.warm.give_back(*lent.pop(), damaged=draw.random() < 0.2)
            stats = device.warm.stats()
            assert stats.bytes <= stats.limit_bytes == 10 * host_pages
        for entry in lent:
            device.warm.give_back(*entry, damaged=False)
        stats = device.warm.stats()
        assert stats.entries == len(device.kept())
        assert stats.bytes == 10 * sum(sizes[name[0]] for name in device.kept())
