"""The engine's threads side by side at random speeds: nobody is left behind, and nobody oversleeps.

See ``tests/threads.py`` for how an oversleeper is found.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace

import pytest

from shoal.engine.api import (
    Cancel,
    EndText,
    Failed,
    Fault,
    Finished,
    Flush,
    Flushed,
    Open,
    Opened,
    Pause,
    Pcm,
    Priority,
    PushText,
    Resume,
    Sampling,
    Segmentation,
    SegmentStarted,
    StreamId,
    Voice,
)
from shoal.engine.config import Limits
from tests.fakes import spec
from tests.rig import WIDE, frames_in
from tests.threads import Heard, Threads

PATIENT = replace(WIDE, wait_s=1e6, streams=1000, waiting=1000, batch_streams=1000)
HASTY = replace(PATIENT, wait_s=2.0, waiting=1)
WORDS = ("say 3", "four words of text", "blank", "a|b 7|c", "say 30", "nothing 0", "one 1")


def _one(threads: Threads, stream: StreamId, chance: random.Random) -> None:
    """A client with its own thread: a turn in pieces, and perhaps a change of mind."""
    heard = threads.heard[stream]
    heard.batch = chance.random() < 0.25
    voice = Voice(chance.choice((None, None, "a", "b", "c")))
    rules = Segmentation(min_chars=chance.choice((0, 50)))
    priority = Priority.BATCH if heard.batch else Priority.LIVE
    threads.submit(Open(stream, voice, Sampling(seed=int(stream)), rules, priority))
    paused, fate = False, chance.random()
    for _ in range(chance.randrange(0, 7)):
        time.sleep(chance.choice((0.0, 0.0, 0.002, 0.02, 0.1)) * chance.random())
        match chance.randrange(8):
            case 0:
                heard.marks.append(len(heard.marks))
                threads.submit(Flush(stream, heard.marks[-1]))
            case 1:
                paused = not paused
                threads.submit(Pause(stream) if paused else Resume(stream))
            case _:
                text = chance.choice(WORDS) + chance.choice((". ", ". ", " ", ""))
                heard.text += text
                threads.submit(PushText(stream, text))
    if fate < 0.2:
        time.sleep(chance.random() * 0.1)
        heard.cancelled = True
        threads.submit(Cancel(stream))
        return
    threads.submit(EndText(stream))
    if paused:
        time.sleep(chance.random() * 0.05)
        threads.submit(Resume(stream))


def _check(stream: StreamId, heard: Heard, sound: bytes, faults: set[Fault]) -> None:
    """Everything came once and in order, and nothing was left out."""
    events = heard.events
    failed = isinstance(events[-1], Failed) and events[-1].fault in faults if events else False
    if heard.cancelled or failed:
        assert sum(isinstance(event, Finished | Failed) for event in events) <= 1
        got = b"".join(e.samples for e in events if isinstance(e, Pcm))
        assert sound.startswith(got)
        return
    assert isinstance(events[0], Opened)
    end = events[-1]
    assert isinstance(end, Finished), f"{stream}: {end}"
    chunks = [e for e in events if isinstance(e, Pcm)]
    assert [e.seq for e in chunks] == list(range(len(chunks)))
    assert b"".join(e.samples for e in chunks) == sound
    assert end.samples == len(sound) // 2
    segments = [e for e in events if isinstance(e, SegmentStarted)]
    assert [e.index for e in segments] == list(range(len(segments))) and end.segments == len(
        segments
    )
    assert "".join("".join(e.text.split()) for e in segments) == "".join(heard.text.split())
    frames = 0
    for segment in segments:
        silent = "blank" in segment.text
        pieces = ["2"] if silent else segment.text.split("|")
        frames += sum(frames_in(piece) or 2 for piece in pieces)
    assert end.frames == frames
    assert [e.mark for e in events if isinstance(e, Flushed)] == heard.marks
    assert sum(1 for e in events if isinstance(e, Opened | Finished | Failed)) == 2


@pytest.mark.parametrize("seed", range(4))
def test_every_stream_ends_whole_and_no_thread_oversleeps(seed: int) -> None:
    _storm(seed, PATIENT, 0.0, set())


@pytest.mark.parametrize("seed", range(2))
def test_who_is_refused_leaves_nothing_behind(seed: int) -> None:
    _storm(seed, HASTY, 0.0, {Fault.BUSY})


@pytest.mark.parametrize("seed", range(2))
def test_what_breaks_ends_its_streams_and_leaves_nothing_behind(seed: int) -> None:
    _storm(seed, PATIENT, 0.02, {Fault.ENGINE})


def _storm(seed: int, limits: Limits, breaks: float, faults: set[Fault]) -> None:
    """``faults``: those with which streams may end."""
    chance = random.Random(seed)
    sizes = spec(
        slots=chance.choice((1, 2, 4)),
        pages=chance.choice((48, 160)),
        max_positions=256,
        host_pages=chance.choice((0, 9, 40)),
    )
    threads = Threads(seed, sizes, limits, breaks)
    clients: list[threading.Thread] = []
    for number in range(1, 41):
        stream = StreamId(number)
        threads.heard[stream] = Heard()
        own = random.Random(f"{seed} {number}")
        clients.append(threading.Thread(target=_one, args=(threads, stream, own)))
        clients[-1].start()
        time.sleep(chance.choice((0.0, 0.005, 0.03)))
    for client in clients:
        client.join()
    threads.until(lambda: all(heard.over for heard in threads.heard.values()), "streams go on")
    threads.until(lambda: not threads.loop.stats.streams_open, "streams are left")
    threads.until(lambda: not threads.loop.stats.slots_busy, "slots are left")
    voicing = threads.scheduler._voicing  # pyright: ignore[reportPrivateUsage]
    threads.until(
        lambda: voicing._saving is None,  # pyright: ignore[reportPrivateUsage]
        "a voice is being copied",
    )
    threads.stop()
    memory = threads.scheduler._memory  # pyright: ignore[reportPrivateUsage]
    held = sum(len(prefix.pages) for prefix in memory.prefixes._entries.values())  # pyright: ignore[reportPrivateUsage]
    assert (memory.pool.total - memory.pool.free, memory.promised) == (held, 0)
    assert not threads.vocoder._listeners  # pyright: ignore[reportPrivateUsage]
    assert min(threads.probes.values()) > 10
    sound = threads.stretches()
    ends = [heard.events[-1] for heard in threads.heard.values() if heard.events]
    failed = {end.fault for end in ends if isinstance(end, Failed)}
    assert failed == faults
    for stream, heard in threads.heard.items():
        _check(stream, heard, sound.get(stream, b""), faults)
