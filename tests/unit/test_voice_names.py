"""Which voice answers to a name, and what is known of voices that come and go meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection

import pytest

from shoal.realtime.voice_names import VoiceNames


class Store:
    """Lists ``ids``, or fails; ``held``: once it has read them, until ``let_go``."""

    def __init__(self, *ids: str) -> None:
        self.ids = set(ids)
        self.fails = False
        self.read = threading.Event()
        self.let_go = threading.Event()
        self.let_go.set()

    def list_ids(self) -> Collection[str]:
        if self.fails:
            raise OSError("the disk is away")
        found = frozenset(self.ids)
        self.read.set()
        assert self.let_go.wait(30)
        return found


def names(store: Store, fallback: str | None = None, **aliases: str) -> VoiceNames:
    return VoiceNames(store.list_ids, aliases, fallback, poll_s=0.001)


async def test_an_alias_then_a_voice_then_what_clients_name_unasked_then_the_fallback() -> None:
    store = Store("ann", "bob", "default")
    of = names(store, ann="bob", carl="")
    assert of.voice_of("default") is None, "nothing is listed yet"
    await of.refresh()
    assert of.voice_of(None) is None
    assert of.voice_of("ann") == "bob" and of.voice_of("bob") == "bob"
    assert of.voice_of("carl") is None
    assert of.voice_of("default") == "default"
    assert of.voice_of("933563129e564b19a115bedd57b7406a") is None
    assert of.voice_of("nobody") == "nobody" and of.preset() is None
    of = names(store, "bob", default="ann")
    await of.refresh()
    assert of.voice_of("default") == "ann"
    assert of.voice_of("933563129e564b19a115bedd57b7406a") is None
    assert of.voice_of("nobody") == "bob" and of.preset() == "bob"
    assert names(store, "").voice_of("nobody") is None


async def test_what_is_the_servers_own_is_told_apart() -> None:
    of = names(Store("ann"), bob="ann")
    await of.refresh()
    assert [name for name in ("ann", "bob", "default", "alloy") if of.has(name)] == [
        *("ann", "bob", "default")
    ]


async def test_what_changes_while_a_list_is_on_its_way_is_not_lost() -> None:
    store = Store("ann", "bob")
    of = names(store, "bob")
    store.let_go.clear()
    listing = asyncio.create_task(of.refresh())
    await asyncio.to_thread(store.read.wait, 30)
    of.added("new")
    of.removed("ann")
    of.removed("gone")
    of.added("gone")
    store.let_go.set()
    await listing
    assert of.known == {"bob", "new", "gone"}
    assert of.voice_of("new") == "new" and of.voice_of("ann") == "bob"
    await of.refresh()
    assert of.known == {"ann", "bob"}, "by then the list tells"


async def test_a_list_that_fails_is_told_once_and_loses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store("ann")
    of = names(store)
    with caplog.at_level(logging.ERROR):
        for times in (1, 2):
            store.fails = False
            await of.refresh()
            store.fails = True
            for _ in range(3):
                await of.refresh()
                assert of.known == {"ann"}
            assert caplog.messages == ["voices_not_listed"] * times


async def test_a_list_that_fails_is_tried_again() -> None:
    store = Store("ann")
    of = names(store)
    store.fails = True
    watching = asyncio.create_task(of.watch())
    await asyncio.wait_for(of.listed.wait(), 30)
    assert of.known == frozenset()
    store.fails = False
    for _ in range(2):  # the first was taken over before the second began
        assert await asyncio.to_thread(store.read.wait, 30)
        store.read.clear()
    assert of.known == {"ann"}
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
