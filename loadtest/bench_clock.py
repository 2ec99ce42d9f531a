"""How long work takes as a captured CUDA graph: what the benches of kernels go by. Not a bench
itself; needs a GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def captured(body: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """``body`` as a graph that has run once."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        body()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def replay_ms(graph: torch.cuda.CUDAGraph, replays: int = 9, least_s: float = 0.0) -> float:
    """Median of at least ``replays`` replays, and of as many as ``least_s`` holds."""
    taken: list[float] = []
    until_s = time.perf_counter() + least_s
    while len(taken) < replays or time.perf_counter() < until_s:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end))
    return statistics.median(taken)


def graph_ms(body: Callable[[], object], least_s: float = 0.15) -> float:
    """Median of replays of ``body``, captured."""
    return replay_ms(captured(body), least_s=least_s)
