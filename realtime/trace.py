"""Traces of turns through OpenTelemetry: off unless asked for, and then an extra dependency.

A turn's spans are written when it ends, from the times that were noted anyway, so that tracing adds
nothing to the way of its audio. No span carries text, audio or a voice's name. A client's
``traceparent`` header makes its span the parent. On the event loop.

Spans     | from                                  | to
turn      | start                                 | its finish was sent, or it was cut
connect   | the request arrived (first turn only) | start
voice     | start                                 | its voice is prefilled
first audio | the first text arrived              | its first audio is on the wire
wait, prefill, first_frame, codec, send | parts of that, one behind the other
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from shoal.engine.api import Timing

from .installing import missing_module

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from starlette.types import ASGIApp, Receive, Scope, Send

Attributes = Mapping[str, str | bool | int | float]
NAME: Final = "shoal"
ARRIVAL: Final = "shoal.arrival"
MAX_PIECES: Final = 4096


class TracingUnavailable(Exception):
    """The extra is not installed."""


@dataclass(slots=True)
class TurnTimes:
    """When a turn passed each stage, by the connection's clock; ``None``: it did not."""

    started_s: float
    voice_s: float | None = None
    voice_cached: bool = False
    text_s: float | None = None
    pcm_s: float | None = None
    sent_s: float | None = None
    timing: Timing | None = None
    voice: str = ""
    """As the client named it. In no span."""
    pieces: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """When each of the first ``MAX_PIECES`` pieces of text came, and its characters."""


class TurnTrace(Protocol):
    """One turn's."""

    def end(self, times: TurnTimes, now_s: float, attributes: Attributes, failed: bool) -> None:
        """It is over; once."""
        ...


class Traces(Protocol):
    """A server's."""

    def turn(self) -> TurnTrace:
        """A turn begins in the current task, for the request that the task serves."""
        ...


class NoTraces:
    """Tracing is off."""

    def turn(self) -> TurnTrace:
        return self

    def end(self, times: TurnTimes, now_s: float, attributes: Attributes, failed: bool) -> None:
        """Nobody is told."""


class BothTraces:
    """Two that are told of every turn."""

    def __init__(self, one: Traces, other: Traces) -> None:
        self._both = (one, other)

    def turn(self) -> TurnTrace:
        return _BothTurns(tuple(traces.turn() for traces in self._both))


class _BothTurns:
    def __init__(self, turns: tuple[TurnTrace, ...]) -> None:
        self._turns = turns

    def end(self, times: TurnTimes, now_s: float, attributes: Attributes, failed: bool) -> None:
        for turn in self._turns:
            turn.end(times, now_s, attributes, failed)


@dataclass(slots=True)
class _Arrival:
    """When a request came in, until its first turn has taken it."""

    at_ns: int | None


class OtelTraces:
    """To whatever ``processor`` exports to; without one, by OTLP to where the variables of
    OpenTelemetry say. ``close`` sends what is left.

    :raises TracingUnavailable: the extra ``otel`` is not there.
    """

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider

            if processor is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
                from opentelemetry.sdk.trace.export import BatchSpanProcessor

                processor = BatchSpanProcessor(OTLPSpanExporter())
        except ModuleNotFoundError as missing:
            raise TracingUnavailable(missing_module(missing, "shoal[otel]")) from missing
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": NAME}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(NAME)

    def turn(self) -> TurnTrace:
        from opentelemetry import context

        return _OtelTurn(self._tracer, context.get_current())

    def close(self) -> None:
        """Blocks until what is left was sent or given up."""
        self._provider.shutdown()


class _OtelTurn:
    def __init__(self, tracer: Any, parent: Context) -> None:
        self._tracer = tracer
        self._parent = parent

    def end(self, times: TurnTimes, now_s: float, attributes: Attributes, failed: bool) -> None:
        from opentelemetry import context, trace

        # The connection's clock has no date.
        offset_ns = time.time_ns() - int(now_s * 1e9)

        def ns(seconds: float) -> int:
            return offset_ns + int(seconds * 1e9)

        def span(
            name: str, parent: Context, begin_ns: int, end_s: float, **extra: bool | float
        ) -> None:
            child = self._tracer.start_span(
                name, parent, start_time=begin_ns, attributes=extra or None
            )
            child.end(ns(end_s))

        turn = self._tracer.start_span(
            "turn", self._parent, start_time=ns(times.started_s), attributes=attributes
        )
        inside = trace.set_span_in_context(turn, self._parent)
        arrival = cast("_Arrival | None", context.get_value(ARRIVAL, self._parent))
        if arrival is not None and arrival.at_ns is not None:
            span("connect", inside, min(arrival.at_ns, ns(times.started_s)), times.started_s)
            arrival.at_ns = None
        if times.voice_s is not None:
            cached = times.voice_cached
            span("voice", inside, ns(times.started_s), times.voice_s, cached=cached)
        if times.text_s is not None and times.sent_s is not None:
            first = self._tracer.start_span("first audio", inside, start_time=ns(times.text_s))
            within = trace.set_span_in_context(first, inside)
            for name, begin_s, end_s in _parts(times):
                span(name, within, ns(begin_s), end_s)
            first.end(ns(times.sent_s))
        if failed:
            turn.set_status(trace.StatusCode.ERROR)
        turn.end(ns(now_s))


def _parts(times: TurnTimes) -> list[tuple[str, float, float]]:
    """(name, from, to) of what is known of the way to the first audio."""
    timing = times.timing
    if timing is None or times.pcm_s is None or times.sent_s is None:
        return []
    # The engine tells durations: they end when its first sound arrived here.
    spent = (
        ("wait", timing.wait_s),
        ("prefill", timing.prefill_s),
        ("first_frame", timing.first_frames_s),
        ("codec", timing.codec_s),
    )
    at_s = times.pcm_s - sum(seconds for _, seconds in spent)
    parts: list[tuple[str, float, float]] = []
    for name, seconds in spent:
        parts.append((name, at_s, at_s + seconds))
        at_s += seconds
    return [*parts, ("send", times.pcm_s, times.sent_s)]


class TraceContext:
    """ASGI middleware: whose trace a request belongs to, and when it arrived, for its turns."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        own = TraceContextTextMapPropagator().extract(headers, context.Context())
        own = context.set_value(ARRIVAL, _Arrival(time.time_ns()), own)
        token = context.attach(own)
        try:
            await self._app(scope, receive, send)
        finally:
            context.detach(token)
