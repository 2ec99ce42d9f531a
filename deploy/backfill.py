"""Who gives way and who may come: batch workers among the replicas, as a pure function.

Ray has no priorities: what asks first is placed first. So workers never wait in a queue that a
replica could stand behind: one is asked for only where it fits now, and one goes wherever somebody
else waits, or wherever live turns say that somebody is about to. Knows no Ray, no clock and no
network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .autoscale import Rules

Shape = Mapping[str, float]
"""Resources by Ray's names: ``CPU``, ``GPU``, and what a cluster calls its own."""


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    free: Shape


@dataclass(frozen=True, slots=True)
class Worker:
    """``node`` is "" until it is placed."""

    id: str
    node: str
    born_s: float


@dataclass(frozen=True, slots=True)
class Sight:
    """The cluster at one moment. ``waiting``: what others asked for and did not get yet.
    ``coming``: replicas that live turns call for and that nobody has asked for yet.
    ``unplaced``: of our own, those that found no room after all. ``blind``: there are replicas that
    have not said how many turns they speak, so nobody comes who may have to go."""

    at_s: float
    nodes: Sequence[Node]
    waiting: Sequence[Shape]
    coming: int
    workers: Sequence[Worker]
    unplaced: int = 0
    blind: bool = False


@dataclass(frozen=True, slots=True)
class Manners:
    """``worker`` and ``replica`` are what each takes; ``most`` workers at once."""

    worker: Shape
    replica: Shape
    most: int
    calm_s: float = 5.0
    """Nobody may have waited for so long before workers come back."""
    answer_s: float = 0.5
    """Who went is an answer to who waits, for as long as Ray's view of both may be old. It cannot
    be told from another who waits, and that one waits for so long: too short costs a worker."""
    settle_s: float = 1.0
    """Nobody is asked for again before it is known where the last ones are."""
    place_s: float = 2.0
    """A worker that has no place by then is taken back."""


@dataclass(frozen=True, slots=True)
class Past:
    """What a decision needs of the ones before it."""

    pressed_s: float = -math.inf
    hired_s: float = -math.inf
    evicted: tuple[tuple[float, int], ...] = ()
    """(at_s, replicas that were made room for)."""


@dataclass(frozen=True, slots=True)
class Orders:
    """``evict`` these now; then ask for ``hire`` new ones."""

    evict: tuple[str, ...] = ()
    hire: int = 0


def plan(sight: Sight, past: Past, manners: Manners) -> tuple[Orders, Past]:
    """What to do, and what to pass in next time."""
    now_s = sight.at_s
    answered = tuple(one for one in past.evicted if one[0] > now_s - manners.answer_s)
    past = replace(past, evicted=answered)
    wanted = [*sight.waiting, *(manners.replica for _ in range(sight.coming))]
    if wanted:
        past = replace(past, pressed_s=now_s)
        evict, served = _make_room(wanted, sight, manners, sum(many for _, many in answered))
        if served:
            past = replace(past, evicted=(*answered, (now_s, served)))
        return Orders(evict), past
    if sight.unplaced and now_s - past.hired_s > manners.place_s:
        homeless = [worker.id for worker in _youngest(sight.workers) if not worker.node]
        return Orders(tuple(homeless[: sight.unplaced])), replace(past, pressed_s=now_s)
    settled = now_s - past.hired_s > manners.settle_s
    if now_s - past.pressed_s < manners.calm_s or not settled or sight.unplaced or sight.blind:
        return Orders(), past
    hire = min(_fitting(sight.nodes, manners.worker), manners.most - len(sight.workers))
    if hire <= 0:
        return Orders(), past
    return Orders(hire=hire), replace(past, hired_s=now_s)


def coming(live_turns: float, capacity: float, replicas: int, rules: Rules) -> int:
    """Replicas that so many turns will make the autoscaler ask for, beyond those it has.

    The autoscaler sees means over seconds and looks ahead by their slope; this sees the turns of
    now, and only has to know who will have to go.
    """
    need = math.ceil(live_turns / (max(capacity, 1.0) * rules.target_load)) + rules.spare
    return max(0, min(max(need, rules.least), rules.most) - replicas)


def _make_room(
    wanted: Sequence[Shape], sight: Sight, manners: Manners, answered: int
) -> tuple[tuple[str, ...], int]:
    """Whom to evict, and for how many of ``wanted``; ``answered`` of them have had their answer."""
    free = {node.id: dict(node.free) for node in sight.nodes}
    there: dict[str, list[Worker]] = {node.id: [] for node in sight.nodes}
    for worker in _youngest(sight.workers):
        if worker.node in there:
            there[worker.node].append(worker)
    gone: list[str] = []
    served = 0
    for shape in wanted:
        if (home := next((id for id in free if _holds(free[id], shape)), None)) is not None:
            _take(free[home], shape)
            continue
        if answered > 0:
            answered -= 1
            continue
        prices = {
            node: price
            for node, workers in there.items()
            if (price := _price(free[node], len(workers), shape, manners.worker)) is not None
        }
        if not prices:
            continue  # nobody's going would help it
        node = min(prices, key=lambda node: prices[node])
        for _ in range(prices[node]):
            gone.append(there[node].pop(0).id)
            _give(free[node], manners.worker)
        _take(free[node], shape)
        served += 1
    return tuple(gone), served


def _youngest(workers: Sequence[Worker]) -> list[Worker]:
    """First who loses least by going."""
    return sorted(workers, key=lambda worker: -worker.born_s)


def _price(free: Shape, workers: int, shape: Shape, each: Shape) -> int | None:
    """How many have to leave a node so that ``shape`` fits there."""
    room = dict(free)
    for gone in range(workers + 1):
        if _holds(room, shape):
            return gone
        _give(room, each)
    return None


def _fitting(nodes: Sequence[Node], shape: Shape) -> int:
    """How many of ``shape`` would find room now."""
    found = 0
    for node in nodes:
        room = dict(node.free)
        while _holds(room, shape):
            _take(room, shape)
            found += 1
    return found


def _holds(free: Shape, shape: Shape) -> bool:
    # Ray counts in ten-thousandths.
    return all(free.get(name, 0.0) >= much - 1e-6 for name, much in shape.items())


def _take(free: dict[str, float], shape: Shape) -> None:
    for name, much in shape.items():
        free[name] = free.get(name, 0.0) - much


def _give(free: dict[str, float], shape: Shape) -> None:
    for name, much in shape.items():
        free[name] = free.get(name, 0.0) + much
