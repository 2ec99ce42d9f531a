"""One line an event, readable by machines, written by another thread."""

from __future__ import annotations

import io
import json
import logging
import threading

from shoal.realtime import log


def lines_of(as_json: bool, level: str = "info") -> list[str]:
    stream = io.StringIO()
    logs = log.LogThread(stream, level, as_json)
    logger = logging.getLogger("shoal.test")
    try:
        log.event(logger, "turn", socket=3, seconds=0.123456, end="stop", code=None, ok=True)
        log.event(logger, "detail", logging.DEBUG, socket=3)
        log.event(logger, "quoted", message='two words, "quoted"\nand a line')
        try:
            raise ValueError("why")
        except ValueError:
            logger.exception("crashed", extra={"fields": {"socket": 4}})
        logging.getLogger("uvicorn.error").info("query strings are shown here")
    finally:
        logs.stop()
    return stream.getvalue().splitlines()


def test_logfmt() -> None:
    turn, quoted, crashed = lines_of(as_json=False)
    assert turn.startswith("time=")
    assert turn.endswith(
        "level=info logger=shoal.test event=turn socket=3 seconds=0.1235 end=stop ok=true"
    )
    assert quoted.endswith(r'message="two words, \"quoted\"\nand a line"')
    assert "event=crashed socket=4 traceback=" in crashed and "ValueError: why" in crashed


def test_json() -> None:
    turn, _, crashed = map(json.loads, lines_of(as_json=True))
    assert (turn["event"], turn["socket"], turn["ok"]) == ("turn", 3, True)
    assert "code" not in turn
    assert crashed["level"] == "error" and "ValueError: why" in crashed["traceback"]


def test_the_level_is_ours_and_libraries_stay_quiet() -> None:
    debug = lines_of(as_json=False, level="debug")
    assert any("event=detail" in line for line in debug)
    assert not any("query strings" in line for line in debug)
    assert len(lines_of(as_json=False, level="error")) == 1


def test_a_stopped_log_leaves_the_loggers_as_they_were() -> None:
    logger = logging.getLogger(log.LOGGER)
    before = (list(logger.handlers), logger.propagate, logger.level)
    lines_of(as_json=False)
    assert (list(logger.handlers), logger.propagate, logger.level) == before


class BlockedStream(io.StringIO):
    """A full disk, a slow terminal: it takes the first line and no more until told."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def write(self, text: str) -> int:
        assert self.release.wait(10)
        return super().write(text)


def test_nobody_waits_for_a_stream_that_blocks() -> None:
    stream = BlockedStream()
    logs = log.LogThread(stream, "info", as_json=False, max_queued=100)
    logger = logging.getLogger("shoal.test")
    for number in range(1000):  # would hang here if a line waited
        log.event(logger, "line", number=number)
    stream.release.set()
    logs.stop()
    written = stream.getvalue().splitlines()
    assert 1 <= len(written) <= 102  # lines are lost, and memory is not
