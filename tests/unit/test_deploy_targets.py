"""Where Prometheus is told to look for replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from starlette.applications import Starlette

from tests.fakes import ManualClock

pytest.importorskip("ray")

from shoal.deploy.targets import FRESH_S, PATH, Targets


class Controller:
    """Knows ``replicas``, or raises; counts who asked."""

    def __init__(self, *replicas: str) -> None:
        self.replicas = replicas
        self.asked = 0
        self.problem: Exception | None = None

    async def __call__(self) -> Sequence[str]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.problem is not None:
            raise self.problem
        return self.replicas


def client(targets: Targets) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Starlette(routes=[targets.route]))
    return httpx.AsyncClient(transport=transport, base_url="http://replica")


async def test_every_replica_is_listed_as_prometheus_wants_it() -> None:
    async with client(Targets(Controller("10.0.0.2:30000", "10.0.0.1:30001"))) as asking:
        answer = await asking.get(PATH)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    assert answer.json() == [{"targets": ["10.0.0.1:30001", "10.0.0.2:30000"]}]


async def test_however_many_ask_the_controller_is_asked_once_in_a_while() -> None:
    clock, controller = ManualClock(), Controller("10.0.0.1:30000")
    async with client(Targets(controller, clock)) as asking:
        await asyncio.gather(*(asking.get(PATH) for _ in range(5)))
        assert controller.asked == 1
        clock.tick(FRESH_S)
        controller.replicas = ("10.0.0.9:30000",)
        answer = await asking.get(PATH)
    assert controller.asked == 2
    assert answer.json() == [{"targets": ["10.0.0.9:30000"]}]


@pytest.mark.parametrize("problem", [TimeoutError(), ValueError("no actor of that name")])
async def test_a_controller_that_is_away_is_no_empty_fleet(problem: Exception) -> None:
    clock, controller = ManualClock(), Controller("10.0.0.1:30000")
    controller.problem = problem
    async with client(Targets(controller, clock)) as asking:
        assert (await asking.get(PATH)).status_code == 503
        controller.problem = None
        clock.tick(FRESH_S)
        assert (await asking.get(PATH)).status_code == 200
