"""Results of load tests as they are written to disk, cut down to what gates look at."""

from __future__ import annotations

from typing import Any

SETTINGS = {"load": {}, "speech": {}, "slo": {}, "frame_s": 0.05, "timing": {}}


def run(name: str = "closed@16", **figures: float) -> dict[str, Any]:
    p95 = figures.get("ttfa_p95", 0.080)
    return {
        "name": name,
        "totals": {
            "percentiles": {
                "ttfa": {"count": 100, "p50": figures.get("ttfa_p50", 0.05), "p95": p95}
            },
            "frames_per_s": figures.get("frames_per_s", 1000.0),
            "audio_s_per_s": 50.0,
            "goodput": figures.get("goodput", 1.0),
            "good_turns_per_s": 5.0,
            "turns": 100,
            "failed": figures.get("failed", 0),
            "refused": 0,
            "stalled_turns": {"0ms": figures.get("stalled", 0), "100ms": 0},
            "min_lead_s": {"0ms": 0.1},
            "faults": {"wrong_sample_rate": figures.get("wrong_rate", 0)},
        },
    }


def result(*runs: dict[str, Any], kind: str = "h200", rate: int = 24000) -> dict[str, Any]:
    return {
        "created": "2026-01-01T00:00:00+00:00",
        "kind": kind,
        "machine": {"cpu": "x"},
        "target": {"format": "pcm", "rate": rate},
        "settings": SETTINGS,
        "runs": list(runs or (run(),)),
    }
