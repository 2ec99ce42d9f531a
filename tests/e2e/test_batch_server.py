"""``shoal batch`` against a server: behind live turns, exactly once, over the wire."""

from __future__ import annotations

import asyncio
import json
import threading
import wave
from collections.abc import Callable
from pathlib import Path

from shoal.engine.fake import FakeEngine
from shoal.engine.fake_tone import tone
from shoal.realtime.batch import Tally, run_batch
from shoal.realtime.batch_folder import Folder
from shoal.realtime.batch_speakers import RemoteSpeaker
from shoal.realtime.config import ServerConfig
from shoal.realtime.say import say_remote
from tests.e2e.conftest import Server

LINES = 12
"""More than a busy machine speaks while the live turns are counted."""


class Nowhere:
    """A loudspeaker that nobody hears."""

    def write(self, pcm: bytes) -> None:
        """Heard and forgotten."""

    def __enter__(self) -> Nowhere:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing is open."""


def ttfa_s(server: Server, turns: int) -> list[float]:
    return sorted(
        say_remote(server.http, ["Hello there."], lambda _: Nowhere()).ttfa_s for _ in range(turns)
    )


async def test_live_turns_are_as_quick_beside_it_and_every_line_is_there(tmp_path: Path) -> None:
    text = "A long line that nobody waits for, and that goes on for quite a while, " * 4
    source = tmp_path / "in"
    source.write_text(
        "".join(
            json.dumps(
                {
                    "id": f"n{i}",
                    "text": text,
                    "seed": i,
                    "sample_rate": 24_000,
                    "prosody": {"normalize_loudness": False},
                }
            )
            + "\n"
            for i in range(LINES)
        )
    )
    server = Server(FakeEngine(slots=2, speed=20.0), ServerConfig(port=0)).start()
    try:
        await asyncio.to_thread(ttfa_s, server, 2)
        alone = await asyncio.to_thread(ttfa_s, server, 15)
        tallies: list[Tally] = []

        def work() -> None:
            with Folder(tmp_path / "out") as folder:
                tallies.append(run_batch(source, folder, RemoteSpeaker(server.http), workers=4))

        thread = threading.Thread(target=work)
        thread.start()
        await server.until(lambda: server.metric("shoal_batch_slots") == 2)
        beside = await asyncio.to_thread(ttfa_s, server, 15)
        still: Callable[[], float] = lambda: server.metric("shoal_batch_turns")  # noqa: E731
        assert still() > 0, "it was under way all the time"
        assert server.metric("shoal_ttfa_seconds_count") == 32, "of live turns alone"
        await asyncio.to_thread(thread.join)
        assert (tallies[0].spoken, tallies[0].failed) == (LINES, 0)
        # A frame at most is what a parked stream holds up: the fake's is 2.5 ms. A slot of its own
        # would be free after some 0.4 s.
        assert beside[7] <= 1.5 * alone[7] + 0.05, (alone, beside)
    finally:
        server.stop()
    for i in range(LINES):
        with wave.open(str(tmp_path / "out" / f"n{i}.wav")) as heard:
            pcm = heard.readframes(heard.getnframes())
        assert pcm == tone(text, "", i, 24_000, 1_200)
