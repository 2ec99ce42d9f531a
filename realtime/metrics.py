"""Every metric of the server, named once, in a registry of its own.

Counters and histograms are fed from the event loop; what the engine counts is read when a scrape
asks for it. Nothing here is global: two servers in one process have two of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.engine.api import EngineStats, TierStats, Timing

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TTFA_PARTS: Final = ("wait", "prefill", "first_frame", "codec", "send")
_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5),
    *(0.75, 1.0, 1.5, 3.0, 10.0),
)


class Metrics:
    """``stats`` is called once a scrape; ``slots`` is how many turns can speak at once."""

    def __init__(self, stats: Callable[[], EngineStats], slots: int) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.sockets = Gauge("shoal_sockets", "Open sockets", registry=registry)
        self.turns = Gauge("shoal_turns", "Live turns between start and finish", registry=registry)
        self.batch_turns = Gauge(
            "shoal_batch_turns",
            "Turns of batch priority between start and finish",
            registry=registry,
        )
        self.paused = Gauge(
            "shoal_turns_paused", "Turns whose client reads too slowly", registry=registry
        )
        self.turns_ended = Counter(
            "shoal_turns_ended", "Turns by how they ended", ["end"], registry=registry
        )
        self.refusals = Counter(
            "shoal_refusals", "Sockets and turns refused, by reason", ["reason"], registry=registry
        )
        self.errors = Counter(
            "shoal_errors", "Errors by whose fault they are", ["fault"], registry=registry
        )
        self.audio_s = Counter(
            "shoal_audio_seconds", "Audio handed to clients", ["format"], registry=registry
        )
        self.ttfa_s = Histogram(
            "shoal_ttfa_seconds",
            "From a turn's first text to its first audio on the socket",
            buckets=_SECONDS,
            registry=registry,
        )
        self._ttfa_part_s = Histogram(
            "shoal_ttfa_part_seconds",
            "Where that time went",
            ["part"],
            buckets=_SECONDS,
            registry=registry,
        )
        for part in TTFA_PARTS:
            self._ttfa_part_s.labels(part)
        self.encode_s = Histogram(
            "shoal_encode_seconds", "Encoding one chunk", buckets=_SECONDS, registry=registry
        )
        self.playout_lead_s = Histogram(
            "shoal_playout_lead_seconds",
            "Audio a client still holds when its next chunk is sent; negative is a gap",
            buckets=(-1.0, -0.2, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
            registry=registry,
        )
        registry.register(_EngineCollector(stats, slots))

    def first_audio(self, total_s: float, timing: Timing | None, send_s: float) -> None:
        """A turn's first audio went out. ``send_s`` counts from its arrival on the loop."""
        self.ttfa_s.observe(total_s)
        if timing is not None:
            spent = (timing.wait_s, timing.prefill_s, timing.first_frames_s, timing.codec_s, send_s)
            for part, seconds in zip(TTFA_PARTS, spent, strict=True):
                self._ttfa_part_s.labels(part).observe(seconds)

    def page(self) -> bytes:
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    def __init__(self, stats: Callable[[], EngineStats], slots: int) -> None:
        self._stats = stats
        self._slots = slots

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not ask an engine that has not started."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        now = self._stats()
        for name, text, value in (
            ("slots", "Turns that can speak at once", self._slots),
            ("slots_busy", "Slots that speak", now.slots_busy),
            ("streams_open", "Streams that the engine knows", now.streams_open),
            ("streams_waiting", "Streams that wait for a slot", now.streams_waiting),
            ("queue_age_seconds", "Longest wait for a slot at the moment", now.oldest_wait_s),
            ("voices_waiting", "Voices whose recordings wait to be encoded", now.voices_waiting),
            ("kv_pages_used", "Pages of the KV cache in use", now.pages_used),
            ("kv_pages", "Pages of the KV cache", now.pages_total),
            ("batch_slots", "Slots that batch priority has", now.batch_slots),
            ("batch_waiting", "Streams of batch priority that wait", now.batch_waiting),
            ("step_seconds", "The last decode step", now.last_step_s),
            ("engine_lead_seconds", "Least audio ahead of real time of any turn", now.min_lead_s),
        ):
            yield GaugeMetricFamily(f"shoal_{name}", text, value)
        for name, text, value in (
            ("steps", "Decode steps", now.steps),
            ("frames", "Codec frames generated", now.frames),
            ("parked", "Batch streams that lost their slot to live ones", now.parked),
            ("voices_encoded", "Voices whose recordings went through the codec", now.encoded),
            ("voices_skipped", "Voices that nobody waited for any more", now.voices_skipped),
            (
                "voices_refused",
                "Voices refused: too many beside others, or late",
                now.voices_refused,
            ),
        ):
            yield CounterMetricFamily(f"shoal_{name}", text, value)
        yield from _voice_tiers(
            {"hot": now.hot, "warm": now.warm, "codes": now.codes, "cold": now.cold}
        )


def _voice_tiers(tiers: Mapping[str, TierStats]) -> Iterator[Metric]:
    """One metric a figure, its samples labelled by tier."""
    labels = ("tier",)
    gauges = (
        (
            "entries",
            "Voices in a tier of the cache: hot (KV on the device), warm (KV in memory), "
            "codes (in memory), cold (codes on disk)",
        ),
        ("bytes", "What they take"),
        ("limit_bytes", "What they may take"),
    )
    counters = (
        ("hits", "Voices found in a tier"),
        ("misses", "Voices looked for in a tier that were not there"),
        ("evictions", "Voices that a tier let go for room"),
        ("promotions", "Voices that a tier took up from another"),
    )
    for name, text in gauges:
        gauge = GaugeMetricFamily(f"shoal_voice_{name}", text, labels=labels)
        for tier, stats in tiers.items():
            gauge.add_metric((tier,), getattr(stats, name))
        yield gauge
    for name, text in counters:
        counter = CounterMetricFamily(f"shoal_voice_{name}", text, labels=labels)
        for tier, stats in tiers.items():
            counter.add_metric((tier,), getattr(stats, name))
        yield counter
