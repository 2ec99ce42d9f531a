"""Whole runs against the stand-in: arrivals, coordinated omission, the knee."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from shoal.loadtest.drive.collector import Row
from shoal.loadtest.drive.line import now_s
from shoal.loadtest.drive.load import Load, Mode, Timing, WorkerPlan
from shoal.loadtest.drive.saturation import judge_client
from shoal.loadtest.drive.worker import WorkerResult, run_worker, window_of
from shoal.loadtest.measure.histogram import Histogram
from shoal.loadtest.measure.knee import KneeSearch
from shoal.loadtest.measure.metrics import Rules
from shoal.loadtest.measure.slo import Slo
from shoal.loadtest.measure.timeline import Kind
from shoal.loadtest.plan.turn_plan import Speech
from shoal.loadtest.stand_in.lie import Lie
from shoal.loadtest.stand_in.server import standing_in
from shoal.loadtest.stand_in.truth import Truth
from shoal.loadtest.targets.target import TargetOptions

SHORT = Lie(audio_s=0.1)
SLOW_S = 0.9


async def load(
    lies: Sequence[Lie],
    mode: Mode,
    level: float,
    timing: Timing,
    room: int = 1000,
    speech: Speech | None = None,
    slo: Slo | None = None,
    **load: Any,
) -> tuple[WorkerResult, list[Truth]]:
    """One process's worth of load, in this process."""
    settings: dict[str, Any] = {"cold_every_s": 0.0, **load}
    async with standing_in(lies, room=room) as server:
        plan = WorkerPlan(
            "shoal",
            TargetOptions(server.ws_url),
            Load(mode, level, **settings),
            timing,
            speech or Speech(sentences=(1, 1)),
            Rules(24000),
            slo or Slo(ttfa_s=5.0),
            0.05,
            "seed",
        )
        window = window_of(timing, now_s() + 0.05)
        result = await run_worker(plan, window, lambda _: None, asyncio.Event())
        return result, list(server.ledger.turns)


def finished(rows: Sequence[Row]) -> None:
    assert rows
    assert {row.ending for row in rows} == {"finished"}


async def test_coordinated_omission_is_visible() -> None:
    """One slow turn keeps a user's line busy while his next turns fall due.

    Counted from when the text left, one turn was slow. Counted from when it was due, so was every
    turn that had to wait for it: that is what the user had.
    """
    period_s = 0.1
    lies = [SHORT] * 5 + [replace(SHORT, first_delay_s=SLOW_S)] + [SHORT] * 100
    timing = Timing(ramp_s=0.0, warmup_s=0.0, window_s=2.0, cooldown_s=0.0)
    result, truths = await load(lies, Mode.CLOSED, 1, timing, period_s=period_s)
    finished(result.rows)
    assert len(result.rows) == len(truths) == 20
    gaps = [b.at_s - a.at_s for a, b in pairwise(result.rows)]
    assert gaps == pytest.approx([period_s] * 19), "due by the clock, whatever the server does"
    from_sent = [row.ttfa_sent_s or 0.0 for row in result.rows]
    from_due = [row.ttfa_s or 0.0 for row in result.rows]
    for row, sent, due in zip(result.rows, from_sent, from_due, strict=True):
        assert due == pytest.approx(sent + (row.send_lag_s or 0.0))
    assert max(from_sent) == from_sent[5] >= SLOW_S
    # turn 5 + k was due k periods later and could not leave before turn 5 had its audio
    for k in range(8):
        assert from_due[5 + k] >= SLOW_S - k * period_s
        true_s = truths[5 + k].sent_s[0] - truths[5].sent_s[0]
        waited = from_due[5 + k] - (SLOW_S - k * period_s)
        assert waited == pytest.approx(true_s + from_due[5] - SLOW_S, abs=0.1)
    assert sum(s > SLOW_S / 2 for s in from_due) >= sum(s > SLOW_S / 2 for s in from_sent) + 4
    histograms = result.totals.histograms
    due_p75, sent_p75 = histograms["ttfa"].percentile(75), histograms["ttfa_sent"].percentile(75)
    assert due_p75 is not None and sent_p75 is not None
    assert due_p75 > sent_p75 + 0.1


async def test_a_closed_loop_keeps_its_users_busy_and_no_more() -> None:
    timing = Timing(ramp_s=0.1, warmup_s=0.2, window_s=1.0, cooldown_s=0.1)
    lie = replace(SHORT, first_delay_s=0.1)
    result, truths = await load([lie], Mode.CLOSED, 4, timing)
    finished(result.rows)
    assert {row.user for row in result.rows} == {0, 1, 2, 3}
    # no user can be served more often than every 0.1 s
    assert len(result.rows) <= 4 * 11
    assert result.counts.connects == 4
    for user in range(4):
        due = sorted(row.at_s for row in result.rows if row.user == user)
        assert all(b - a >= 0.1 for a, b in pairwise(due))
    assert result.totals.frames_per_s is not None
    in_window = result.totals.window_audio_s
    assert 0 < in_window <= 0.1 * len(truths) + 1e-6
    assert result.totals.frames_per_s == pytest.approx(in_window / 0.05 / 1.0)


async def test_an_open_loop_does_not_wait_for_a_slow_server() -> None:
    timing = Timing(ramp_s=0.0, warmup_s=0.0, window_s=1.0, cooldown_s=0.0)
    slow = replace(SHORT, first_delay_s=0.6)
    due: list[list[float]] = []
    for lie in (SHORT, slow):
        result, _ = await load([lie], Mode.OPEN, 12, timing, ahead_s=0.2)
        finished(result.rows)
        due.append([round(row.at_s, 6) for row in sorted(result.rows, key=lambda r: r.at_s)])
        assert result.complete
    assert due[0] == due[1], "the same turns are due at the same times"
    assert len(due[0]) > 5


async def test_too_few_sockets_show_as_late_turns_not_as_fewer() -> None:
    timing = Timing(ramp_s=0.0, warmup_s=0.0, window_s=0.7, cooldown_s=0.0)
    slow = replace(SHORT, first_delay_s=0.2)
    result, _ = await load([slow], Mode.OPEN, 12, timing, max_sockets=1, ahead_s=0.1)
    finished(result.rows)
    assert len(result.rows) > 4
    assert result.counts.connects == 1
    latest = max(row.ttfa_s or 0.0 for row in result.rows)
    assert latest > 0.2 * len(result.rows) - 0.7, "the last one waited for all before it"
    assert max(row.ttfa_sent_s or 0.0 for row in result.rows) < latest


async def test_conversations_think_listen_and_interrupt() -> None:
    timing = Timing(ramp_s=0.2, warmup_s=0.0, window_s=2.5, cooldown_s=0.0)
    lie = Lie(audio_s=0.5, chunk_s=0.1, pace=0.5)
    speech = Speech(
        sentences=(1, 1), tokens_per_s=(60, 80), barge_in_share=0.5, barge_in_s=(0.05, 0.1)
    )
    result, truths = await load(
        [lie], Mode.CONVERSATION, 6, timing, speech=speech, think_s=0.3, crowd_every_s=1.0
    )
    endings = result.totals.endings
    assert set(endings) == {"finished", "cut"}
    assert endings["cut"] >= 2 and endings["finished"] >= 2
    assert result.totals.percentiles("ttfa_text")["p50"] is not None
    for user in range(6):
        rows = sorted((r for r in result.rows if r.user == user), key=lambda r: r.at_s)
        for before, after in pairwise(rows):
            heard_s = before.audio_s if before.ending == "finished" else 0.0
            assert after.at_s - before.at_s >= heard_s, "nobody speaks while listening"
    assert result.counts.connects == 6, "one socket a conversation, barge-ins included"
    assert len(truths) >= len(result.rows)


async def test_cold_callers_are_counted_apart() -> None:
    timing = Timing(ramp_s=0.0, warmup_s=0.0, window_s=0.7, cooldown_s=0.0)
    lie = replace(SHORT, accept_delay_s=0.15)
    for mode in (Mode.CLOSED, Mode.OPEN, Mode.CONVERSATION):
        result, _ = await load([lie], mode, 2, timing, think_s=0.1, cold_every_s=0.3, ahead_s=0.4)
        assert result.totals.cold_turns >= 1
        cold = [row.ttfa_s or 0.0 for row in result.rows if row.kind is Kind.COLD]
        warm = [row.ttfa_s or 9.0 for row in result.rows if row.kind is Kind.WARM]
        assert len(cold) == result.totals.cold_turns
        assert min(cold) >= 0.15 > min(warm)
        percentile = result.totals.percentiles("cold_ttfa")["p50"]
        assert percentile is not None and percentile >= 0.15


async def test_a_cold_turn_is_part_of_the_load_and_no_addition() -> None:
    timing = Timing(ramp_s=0.0, warmup_s=0.0, window_s=0.8, cooldown_s=0.0)
    result, truths = await load([SHORT], Mode.CLOSED, 1, timing, think_s=0.05, cold_every_s=0.2)
    assert result.totals.cold_turns >= 2
    assert result.counts.connects == result.totals.cold_turns
    for before, after in pairwise(truths):
        assert before.end_s is not None and after.text_s is not None
        assert after.text_s >= before.end_s, "one user never speaks twice at once"


async def test_the_search_finds_the_room_that_the_server_has() -> None:
    timing = Timing(ramp_s=0.0, warmup_s=0.0, window_s=0.4, cooldown_s=0.0)
    search = KneeSearch(3, 64)
    while (level := search.next_level()) is not None:
        result, _ = await load([SHORT], Mode.CLOSED, level, timing, room=7, think_s=0.05)
        if level > 7:
            assert result.totals.errors == {"HTTP 429 at the handshake": result.totals.refused}
        search.record(level, result.totals.verdict().kept)
    assert search.best == 7


@pytest.mark.parametrize("held_s", [0.0, 0.04])
async def test_a_client_that_is_held_up_says_so_with_the_size_of_it(held_s: float) -> None:
    """Something keeps the client's loop for 40 ms in every 50: the figures are its own doing."""

    async def hold_up() -> None:
        while held_s:
            time.sleep(held_s)  # noqa: ASYNC251
            await asyncio.sleep(0.01)

    holding = asyncio.create_task(hold_up())
    timing = Timing(ramp_s=0.0, warmup_s=0.0, window_s=1.0, cooldown_s=0.0)
    result, _ = await load([SHORT], Mode.CLOSED, 1, timing, think_s=0.02)
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    lag = Histogram.decode(result.health.lag)
    judged_ = judge_client(lag, [0.1], None, 0.1, None)
    if held_s:
        assert (lag.percentile(99) or 0.0) >= 0.7 * held_s
        assert any("event loop" in reason for reason in judged_.reasons)
    else:
        assert (lag.percentile(50) or 0.0) < 0.02


async def test_a_process_without_users_has_seen_the_window_too() -> None:
    """With two processes and one user, the other one has nothing to do and says so."""
    timing = Timing(ramp_s=0.0, warmup_s=0.1, window_s=0.5, cooldown_s=0.0)
    plan = WorkerPlan(
        "shoal",
        TargetOptions("ws://127.0.0.1:9"),
        Load(Mode.CLOSED, 1, cold_every_s=0.0),
        timing,
        Speech(),
        Rules(24000),
        Slo(),
        0.05,
        "seed",
        worker=1,
        workers=2,
    )
    window = window_of(timing, now_s())
    result = await run_worker(plan, window, lambda _: None, asyncio.Event())
    assert now_s() >= window.to_s
    assert result.complete and result.totals.turns == 0
    assert Histogram.decode(result.health.lag).count > 10
    assert result.health.cpu_share < 0.75


async def test_a_run_that_is_stopped_keeps_what_it_measured() -> None:
    async with standing_in([SHORT]) as server:
        timing = Timing(ramp_s=0.0, warmup_s=0.0, window_s=60.0)
        plan = WorkerPlan(
            "shoal",
            TargetOptions(server.ws_url),
            Load(Mode.CLOSED, 2, think_s=0.02, cold_every_s=0.0),
            timing,
            Speech(sentences=(1, 1)),
            Rules(24000),
            Slo(),
            0.05,
            "seed",
        )
        stopped = asyncio.Event()
        running = asyncio.create_task(
            run_worker(plan, window_of(timing, now_s()), lambda _: None, stopped)
        )
        await asyncio.sleep(1.0)
        stopped.set()
        result = await running
    assert not result.complete
    assert result.totals.turns >= 1
    assert 0.3 < result.totals.window_s < 5.0
