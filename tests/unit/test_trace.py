"""A turn's trace: which spans, from when to when, under whose parent, and without its text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.types import Message, Receive, Scope, Send

from shoal.engine.api import Timing
from shoal.realtime.trace import NoTraces, OtelTraces, TraceContext, TurnTimes

TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
HEADER = f"00-{TRACE:032x}-{PARENT:016x}-01".encode()
TIMES = TurnTimes(
    started_s=10.0,
    voice_s=10.25,
    voice_cached=True,
    text_s=10.5,
    pcm_s=11.0,
    sent_s=11.125,
    timing=Timing(wait_s=0.125, prefill_s=0.0625, first_frames_s=0.1875, codec_s=0.0625),
)


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    yield InMemorySpanExporter()


def traces(exporter: InMemorySpanExporter) -> OtelTraces:
    return OtelTraces(SimpleSpanProcessor(exporter))


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    spans = exporter.get_finished_spans()
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def seconds(span: ReadableSpan, since: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None and span.end_time is not None
    assert since.start_time is not None
    return (
        round((span.start_time - since.start_time) / 1e9, 6),
        round((span.end_time - since.start_time) / 1e9, 6),
    )


def test_a_turn_s_spans_are_where_its_times_say(exporter: InMemorySpanExporter) -> None:
    traces(exporter).turn().end(TIMES, 14.0, {"shoal.end": "stop"}, False)
    spans = by_name(exporter)
    turn = spans["turn"]
    assert {name: seconds(span, turn) for name, span in spans.items()} == {
        "turn": (0.0, 4.0),
        "voice": (0.0, 0.25),
        "first audio": (0.5, 1.125),
        "wait": (0.5625, 0.6875),
        "prefill": (0.6875, 0.75),
        "first_frame": (0.75, 0.9375),
        "codec": (0.9375, 1.0),
        "send": (1.0, 1.125),
    }
    parents = {name: span.parent.span_id if span.parent else None for name, span in spans.items()}
    first, whole = spans["first audio"].context, turn.context
    assert first is not None and whole is not None and parents["turn"] is None
    assert parents["voice"] == parents["first audio"] == whole.span_id
    assert {parents[n] for n in ("wait", "prefill", "first_frame", "codec", "send")} == {
        first.span_id
    }
    assert spans["voice"].attributes == {"cached": True}
    assert turn.attributes == {"shoal.end": "stop"} and turn.status.is_ok
    assert turn.resource.attributes["service.name"] == "shoal"


def test_a_turn_without_sound_has_no_first_audio_and_a_failed_one_is_an_error(
    exporter: InMemorySpanExporter,
) -> None:
    traces(exporter).turn().end(TurnTimes(1.0, text_s=1.5), 2.0, {}, True)
    spans = by_name(exporter)
    assert set(spans) == {"turn"}
    assert not spans["turn"].status.is_ok


async def served(
    exporter: InMemorySpanExporter, headers: list[tuple[bytes, bytes]], turns: int = 1
) -> list[ReadableSpan]:
    """What the turns of one request leave behind."""
    made = traces(exporter)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(turns):
            made.turn().end(TurnTimes(10.0), 11.0, {}, False)

    async def receive() -> Message:
        raise AssertionError("nobody asks")

    async def send(_: Message) -> None:
        raise AssertionError("nobody answers")

    await TraceContext(app)({"type": "websocket", "headers": headers}, receive, send)
    made.turn().end(TurnTimes(10.0), 11.0, {"outside": True}, False)
    return list(exporter.get_finished_spans())


async def test_the_parent_is_the_client_s_span_and_connecting_is_the_first_turn_s(
    exporter: InMemorySpanExporter,
) -> None:
    spans = await served(exporter, [(b"traceparent", HEADER)], turns=2)
    assert [span.name for span in spans] == ["connect", "turn", "turn", "turn"]
    for turn in spans[1:3]:
        assert turn.context is not None and turn.context.trace_id == TRACE
        assert turn.parent is not None and turn.parent.span_id == PARENT
    assert spans[3].parent is None, "what is outside of the request is not its"


@pytest.mark.parametrize("header", [b"", b"nonsense", HEADER[:-10]])
async def test_a_bad_traceparent_begins_a_trace_of_its_own(
    exporter: InMemorySpanExporter, header: bytes
) -> None:
    spans = await served(exporter, [(b"traceparent", header)])
    turn = next(span for span in spans if span.name == "turn")
    assert turn.parent is None and turn.context is not None and turn.context.trace_id != TRACE


def test_off_is_nothing(exporter: InMemorySpanExporter) -> None:
    NoTraces().turn().end(TIMES, 14.0, {}, False)
    assert exporter.get_finished_spans() == ()
