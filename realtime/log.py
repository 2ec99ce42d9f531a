"""Structured logs: one line an event, written by a thread of its own so that nobody waits for it.

A line holds ids, counts, times and codes. Never text or audio of a client: callers pass fields,
and what can be in a field is decided where the event is logged.
"""

from __future__ import annotations

import json
import logging
import queue
import re
from logging.handlers import QueueHandler, QueueListener
from types import MappingProxyType
from typing import Final, TextIO

LOGGER: Final = "shoal"
MAX_QUEUED: Final = 10_000
_PLAIN = re.compile(r"[^\s\"=]+")

FieldValue = str | int | float | bool | None


def event(
    logger: logging.Logger, name: str, level: int = logging.INFO, **fields: FieldValue
) -> None:
    """Log an event by name; fields that are ``None`` are left out."""
    if logger.isEnabledFor(level):
        kept = {key: value for key, value in fields.items() if value is not None}
        logger.log(level, name, extra={"fields": kept})


class Formatter(logging.Formatter):
    """logfmt (``key=value``), or one JSON object a line."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, FieldValue] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        if self._as_json:
            return json.dumps(line, ensure_ascii=True)
        return " ".join(f"{key}={_value(value)}" for key, value in line.items())


def _value(value: FieldValue) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class _DroppingHandler(QueueHandler):
    """A queue that is full loses lines; it does not block, and it prints nothing of its own."""

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            pass

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # same process: the listener formats, fields and traceback included


class _PatientListener(QueueListener):
    """Stopping may wait until a line was written, where logging a line may not."""

    def __init__(
        self, lines: queue.Queue[logging.LogRecord | None], handler: logging.Handler
    ) -> None:
        super().__init__(lines, handler)
        self._lines = lines

    def enqueue_sentinel(self) -> None:
        self._lines.put(None)


# Their info lines show query strings, their debug lines frames; a form that is none is no warning.
_LIBRARIES = MappingProxyType(
    {
        "uvicorn": logging.WARNING,
        "websockets": logging.WARNING,
        "python_multipart": logging.ERROR,
    }
)


class LogThread:
    """Owns the listener; ``stop`` writes what is queued and restores the loggers."""

    def __init__(
        self, stream: TextIO, level: str, as_json: bool, max_queued: int = MAX_QUEUED
    ) -> None:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(Formatter(as_json))
        lines: queue.Queue[logging.LogRecord | None] = queue.Queue(max_queued)
        self._handler = _DroppingHandler(lines)
        self._listener = _PatientListener(lines, handler)
        levels: dict[str, int | str] = {LOGGER: level.upper(), **_LIBRARIES}
        self._loggers = [logging.getLogger(name) for name in levels]
        for logger in self._loggers:
            logger.addHandler(self._handler)
            logger.propagate = False
            logger.setLevel(levels[logger.name])
        self._listener.start()

    def stop(self) -> None:
        self._listener.stop()
        for logger in self._loggers:
            logger.removeHandler(self._handler)
            logger.propagate = True
            logger.setLevel(logging.NOTSET)
