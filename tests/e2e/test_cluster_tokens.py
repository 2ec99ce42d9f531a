"""Single-use tokens where several replicas answer: given by one, good once at any."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import live_url, turn

pytest.importorskip("ray")

from shoal.deploy import cluster
from tests.fleet import SENTENCE, Fleet

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # Ray's driver lives in this process
]

logger = logging.getLogger("cluster")  # figures: -o log_cli=true -o log_cli_level=INFO
KEY = "a-key-of-the-cluster"
REPLICAS = 3


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder, pytest.MonkeyPatch.context() as at:
        at.setenv("SHOAL_API_KEY", KEY)  # where an operator puts it, too
        fleet = Fleet(Path(folder))
        cluster.start(fleet.place, cpus=2)
        try:
            fleet.deploy(REPLICAS)
            yield fleet
        finally:
            cluster.stop(fleet.place)


def token_of(fleet: Fleet) -> str:
    request = urllib.request.Request(
        f"{fleet.http}/v1/tokens", b"", {"authorization": f"Bearer {KEY}"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(json.load(answer)["token"])


async def test_a_token_opens_one_socket_whichever_replicas_it_comes_to(fleet: Fleet) -> None:
    url = live_url(fleet.http)
    tokens = await asyncio.gather(*(asyncio.to_thread(token_of, fleet) for _ in range(12)))
    used = await asyncio.gather(*(turn(f"{url}?token={token}", SENTENCE) for token in tokens))
    assert {told.reason for told in used} == {"stop"}
    takers = {told.replica for told in used}
    assert len(takers) == REPLICAS
    again = [await turn(f"{url}?token={token}", SENTENCE) for token in [*tokens, *tokens]]
    assert {told.status for told in again} == {401}
    logger.info(f"12 tokens, {len(takers)} replicas: each opened one socket, and none of 24 more")


async def test_of_many_who_come_with_one_token_at_once_one_is_let_in(fleet: Fleet) -> None:
    url = live_url(fleet.http)
    for _ in range(5):
        token = await asyncio.to_thread(token_of, fleet)
        told = await asyncio.gather(*(turn(f"{url}?token={token}", "Me first.") for _ in range(9)))
        assert sorted(one.status for one in told) == [101] + [401] * 8


async def test_what_no_replica_signed_opens_nothing(fleet: Fleet) -> None:
    url = live_url(fleet.http)
    token = await asyncio.to_thread(token_of, fleet)
    forged = token[:-1] + ("A" if token[-1] != "A" else "B")
    for wrong in (forged, "once_", ""):
        assert (await turn(f"{url}?token={wrong}", SENTENCE)).status == 401
    assert (await turn(f"{url}?token={token}", SENTENCE)).reason == "stop"
