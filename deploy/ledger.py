"""``RayLedger``: where the replicas of a cluster write down which single-use tokens were spent.

One actor remembers, so that the first who claims a token has it and nobody after, whichever
replicas they came to. An actor that Ray had to start again does not know what was spent before: it
refuses tokens that were given before it began, so a token never works twice, and at worst a client
fetches another one. The actor has a process of its own; the rest runs on a replica's loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, cast

import ray
from ray.exceptions import RayError

from shoal.realtime.tokens import LedgerAway, SpentTokens, Ticket

from .cluster import LIVE, SERVE_NAMESPACE

NAME: Final = "shoal-tokens"
CLAIM_S: Final = 2.0
SHARE: Final = 0.001


class Spent:
    """The actor. Pure but for its clock."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._born_s = clock()
        self._spent = SpentTokens(clock)

    def claim(self, ticket: Ticket) -> bool:
        """Whether nobody had it before."""
        return ticket.given_s >= self._born_s and self._spent.add(ticket)


class RayLedger:
    """See the module. There is one actor in a cluster, whoever of the replicas starts it."""

    def __init__(self) -> None:
        untyped = cast("Any", ray)
        actor = untyped.remote(Spent)
        # Where nodes come and go, it is kept on one that stays: a new actor takes no older token.
        stays = {LIVE: SHARE} if LIVE in untyped.cluster_resources() else {}
        self._actor = actor.options(
            name=NAME,
            namespace=SERVE_NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
            resources=stays,
        ).remote()

    async def claim(self, ticket: Ticket) -> bool:
        """See :class:`shoal.realtime.tokens.Ledger`."""
        try:
            async with asyncio.timeout(CLAIM_S):
                return bool(await self._actor.claim.remote(ticket))
        except (RayError, TimeoutError) as error:
            raise LedgerAway from error
