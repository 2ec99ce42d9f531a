"""``TurnRecorder``: a JSON line for each turn, in a file that was asked for, so as to replay it.

A line says when a turn came and how it went, and never what was said:

    at        when it started, in seconds since 1970
    pieces    [[s, characters], ...]: when each piece of its text came, counted from ``at``
    chars     all of them together
    voice     as the client named it, "" for the default
    batch     true for a turn that nobody waits for
    first_s   when its first audio was on the wire, from ``at``; null: it made none
    audio_s   seconds of audio that were sent
    seconds   from ``at`` to its end
    end       stop, cancelled or error

The file is added to, so that replicas on one machine may share it, and has a largest size. Lines
are handed over on the event loop; a thread writes them, and what it cannot keep up with is lost.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from pathlib import Path
from typing import Final

from .trace import Attributes, TurnTimes

MAX_BYTES: Final = 256 << 20
MAX_WAITING: Final = 4096

logger = logging.getLogger("shoal.record")


class TurnRecorder:
    """See the module. A ``Traces`` and its ``TurnTrace`` at once: it needs nothing of a turn before
    its end. ``close`` writes what waits.

    :raises OSError: the file cannot be written.
    """

    def __init__(self, path: Path, most_bytes: int = MAX_BYTES) -> None:
        self._file = path.open("ab", buffering=0)
        self._room = most_bytes - self._file.tell()
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._write, name="record", daemon=True)
        self._thread.start()

    def turn(self) -> TurnRecorder:
        return self

    def end(self, times: TurnTimes, now_s: float, attributes: Attributes, failed: bool) -> None:
        """A turn is over. What the recorder has no room for is left out."""
        began_s = times.started_s

        def since(at_s: float) -> float:
            return round(at_s - began_s, 4)

        line = {
            "at": round(time.time() - (now_s - began_s), 4),
            "pieces": [[since(at_s), chars] for at_s, chars in times.pieces],
            "chars": attributes["shoal.chars"],
            "voice": times.voice,
            "batch": attributes["shoal.priority"] == "batch",
            "first_s": None if times.sent_s is None else since(times.sent_s),
            "audio_s": round(float(attributes["shoal.audio_s"]), 3),
            "seconds": since(now_s),
            "end": attributes["shoal.end"],
        }
        try:
            self._lines.put_nowait(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except queue.Full:
            pass

    def close(self) -> None:
        """Blocks until what waits is written. Idempotent."""
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join()
            self._file.close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._room < len(line):
                if self._room >= 0:
                    logger.warning("record_full")
                self._room = -1
                continue
            self._room -= len(line)
            try:
                self._file.write(line)  # whole: others may add to it, too
            except OSError as error:
                logger.warning("record_failed", extra={"fields": {"error": type(error).__name__}})
                self._room = -1
