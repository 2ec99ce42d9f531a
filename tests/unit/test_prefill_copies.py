"""The prefill thread's copies to and from the host's memory, and what goes before them."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

import pytest

from shoal.engine.api import StreamId
from shoal.engine.frontend import make_frontend
from shoal.engine.jobs import (
    ComposeJob,
    Prefilled,
    PrefillJob,
    Saved,
    SaveJob,
    ToDecode,
    ToPrefill,
)
from shoal.engine.prefill import PAGES_AT_ONCE, Composer, Prefiller
from shoal.engine.runner import PrefillChunk
from tests.fakes import ScriptedRunner, spec
from tests.rig import columns_of
from tests.turns import BUILDER

ME = StreamId(1)
LONG = 2 * PAGES_AT_ONCE + 1
"""Pages of a voice that is copied in three pieces."""


def run_with_host(
    *messages: ToPrefill, late: list[ToPrefill] | None = None, fail: bool = False
) -> tuple[ScriptedRunner, list[str]]:
    """What is done of ``messages``, in order; ``late`` comes while the first piece is copied."""
    inbox: SimpleQueue[ToPrefill | None] = SimpleQueue()
    order: list[str] = []
    coming = late or []

    class Copying(ScriptedRunner):
        """Notes what is copied and computed."""

        def save_pages(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
            super().save_pages(pages, host_pages)
            order.append(f"save {len(pages)}")
            self.come()

        def load_pages(self, host_pages: Sequence[int], pages: Sequence[int]) -> None:
            order.append(f"load {len(pages)}")
            super().load_pages(host_pages, pages)
            self.come()

        def prefill(self, *chunks: PrefillChunk) -> None:
            super().prefill(*chunks)
            order.append(f"prefill {len(chunks)}")

        def come(self) -> None:
            while coming:
                inbox.put(coming.pop(0))

    runner = Copying(spec(pages=64, max_positions=512, host_pages=64))
    runner.fail_copies = fail
    left = len(messages) + len(coming)

    def report(message: ToDecode) -> None:
        nonlocal left
        left -= 1
        match message:
            case Prefilled(job, error, loaded):
                order.append(f"prefilled {job}" + " loaded" * loaded + " failed" * error)
            case Saved(job, error):
                order.append(f"saved {job}" + " failed" * error)
            case _:
                order.append("text")
        if not left:
            inbox.put(None)

    for message in messages:
        inbox.put(message)
    Prefiller(runner, Composer(BUILDER, make_frontend(None), 200), inbox, report).run()
    return runner, order


def sentence(job: int, *, urgent: bool = True) -> PrefillJob:
    """Eight columns in a page of its own."""
    return PrefillJob(job, (PrefillChunk(columns_of("x" * 8), 0, (40 + job,)),), urgent=urgent)


def long_voice(job: int, *, kept: bool = False) -> PrefillJob:
    """In pages from 0 on, and in as many of the host's."""
    pages = tuple(range(LONG))
    chunks = tuple(
        PrefillChunk(columns_of("x" * 8), 8 * page, pages[: page + 1]) for page in range(LONG)
    )
    return PrefillJob(job, chunks, urgent=False, host_pages=pages[::-1] if kept else ())


def test_a_voice_is_copied_to_the_host_when_nothing_else_waits_and_piece_by_piece() -> None:
    pages = tuple(range(LONG))
    late: list[ToPrefill] = [
        ComposeJob(ME, "Hello."),
        sentence(9, urgent=False),
        sentence(10),
    ]
    _, order = run_with_host(SaveJob(1, pages, pages[::-1]), long_voice(2), late=late)
    assert order == [
        *["prefill 1"] * LONG,
        "prefilled 2",
        f"save {PAGES_AT_ONCE}",
        "text",
        "prefill 1",
        "prefilled 10",
        "prefill 1",
        "prefilled 9",
        f"save {PAGES_AT_ONCE}",
        "save 1",
        "saved 1",
    ]


def test_a_voice_that_the_host_has_is_copied_and_more_urgent_work_goes_between() -> None:
    _, order = run_with_host(long_voice(3, kept=True), late=[sentence(5), ComposeJob(ME, "Hello.")])
    assert order == [
        f"load {PAGES_AT_ONCE}",
        "text",
        "prefill 1",
        "prefilled 5",
        f"load {PAGES_AT_ONCE}",
        "load 1",
        "prefilled 3 loaded",
    ]


def test_a_voice_that_cannot_be_copied_back_is_computed(caplog: pytest.LogCaptureFixture) -> None:
    runner, order = run_with_host(long_voice(1, kept=True), fail=True)
    assert order == [f"load {PAGES_AT_ONCE}", *["prefill 1"] * LONG, "prefilled 1"]
    assert runner.pages.digest(tuple(range(LONG)), 8 * LONG) != 0
    assert "copying a voice from the host's memory failed" in caplog.text


def test_a_copy_to_the_host_that_fails_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    pages = tuple(range(LONG))
    _, order = run_with_host(SaveJob(1, pages, pages), fail=True)
    assert order == ["saved 1 failed"]
    assert "copying a voice into the host's memory failed" in caplog.text
