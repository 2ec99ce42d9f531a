"""Who gives way, and who may come."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shoal.deploy.autoscale import Rules
from shoal.deploy.backfill import Manners, Node, Orders, Past, Sight, Worker, coming, plan

ONE = {"CPU": 1.0, "GPU": 1.0}
MANNERS = Manners(
    worker=ONE, replica=ONE, most=8, calm_s=5.0, answer_s=0.5, settle_s=1.0, place_s=2.0
)


def node(name: str, gpus: float) -> Node:
    return Node(name, {"CPU": gpus, "GPU": gpus})


def worker(name: str, where: str, born_s: float = 0.0) -> Worker:
    return Worker(name, where, born_s)


CALM = Sight(at_s=100.0, nodes=[node("a", 2.0)], waiting=[], coming=0, workers=[])
FULL = Sight(
    at_s=100.0,
    nodes=[node("a", 0.0), node("b", 0.0)],
    waiting=[],
    coming=0,
    workers=[worker("old", "a", 1.0), worker("young", "a", 9.0), worker("far", "b", 5.0)],
)


def test_what_is_free_is_taken_as_soon_as_nobody_waits() -> None:
    orders, past = plan(CALM, Past(), MANNERS)
    assert orders == Orders(hire=2)
    soon = replace(CALM, at_s=100.5)
    assert plan(soon, past, MANNERS)[0] == Orders(), "they have not been placed yet"


def test_nobody_comes_before_the_replicas_were_heard() -> None:
    assert plan(replace(CALM, blind=True), Past(), MANNERS)[0] == Orders()


def test_no_more_than_wanted_are_hired() -> None:
    orders, _ = plan(CALM, Past(), replace(MANNERS, most=1))
    assert orders.hire == 1


def test_room_that_is_in_pieces_is_no_room() -> None:
    pieces = replace(CALM, nodes=[node("a", 0.5), node("b", 0.5), Node("c", {"CPU": 4.0})])
    assert plan(pieces, Past(), MANNERS)[0] == Orders()


def test_who_waits_gets_a_workers_place_and_the_youngest_goes() -> None:
    orders, _ = plan(replace(FULL, waiting=[ONE]), Past(), MANNERS)
    assert orders == Orders(evict=("young",))


def test_a_replica_that_is_about_to_be_asked_for_counts_as_one_that_waits() -> None:
    orders, _ = plan(replace(FULL, coming=2), Past(), MANNERS)
    assert len(orders.evict) == 2


def test_nobody_goes_for_whom_there_is_room() -> None:
    room = replace(FULL, nodes=[node("a", 0.0), node("b", 1.0)], waiting=[ONE])
    orders, past = plan(room, Past(), MANNERS)
    assert orders == Orders() and past.pressed_s == 100.0


def test_nobody_goes_where_that_would_help_nobody() -> None:
    orders, _ = plan(replace(FULL, waiting=[{"GPU": 8.0}]), Past(), MANNERS)
    assert orders.evict == ()


def test_a_replica_that_may_only_go_to_nodes_that_stay_moves_nobody_elsewhere() -> None:
    stays = Node("b", {"CPU": 0.0, "GPU": 0.0, "live": 0.999})
    manners = replace(MANNERS, replica={**ONE, "live": 0.001})
    sight = replace(FULL, nodes=[node("a", 0.0), stays])
    assert plan(replace(sight, waiting=[manners.replica]), Past(), manners)[0].evict == ("far",)
    assert plan(replace(sight, coming=2), Past(), manners)[0].evict == ("far",)
    free = replace(CALM, nodes=[node("a", 1.0), replace(stays, free={**stays.free, **ONE})])
    assert plan(free, Past(), manners)[0].hire == 2, "workers go to both"


def test_one_that_needs_two_places_gets_them_on_one_node() -> None:
    orders, _ = plan(replace(FULL, waiting=[{"GPU": 2.0}]), Past(), MANNERS)
    assert set(orders.evict) == {"old", "young"}


def test_one_who_waits_is_answered_once_while_ray_catches_up() -> None:
    waits = replace(FULL, waiting=[ONE])
    orders, past = plan(waits, Past(), MANNERS)
    left = [one for one in FULL.workers if one.id not in orders.evict]
    old_view = replace(waits, at_s=100.3, workers=left)
    assert plan(old_view, past, MANNERS)[0] == Orders()
    still = replace(waits, at_s=101.5, workers=left)
    assert len(plan(still, past, MANNERS)[0].evict) == 1, "it was no old view: it waits"


def test_the_next_one_is_not_taken_for_the_one_before_for_long() -> None:
    """One was placed as another came: the list of who waits looks as it did."""
    waits = replace(FULL, waiting=[ONE])
    orders, past = plan(waits, Past(), MANNERS)
    left = [one for one in FULL.workers if one.id not in orders.evict]
    seen = [plan(replace(waits, at_s=100.0 + n / 10, workers=left), past, MANNERS) for n in (4, 6)]
    assert [len(orders.evict) for orders, _ in seen] == [0, 1]


def test_they_come_back_when_nobody_has_waited_for_a_while() -> None:
    _, past = plan(replace(FULL, waiting=[ONE]), Past(), MANNERS)
    free = replace(CALM, workers=[])
    assert plan(replace(free, at_s=104.0), past, MANNERS)[0] == Orders()
    assert plan(replace(free, at_s=105.1), past, MANNERS)[0] == Orders(hire=2)


def test_a_worker_without_a_place_is_taken_back_and_not_asked_for_at_once() -> None:
    _, past = plan(CALM, Past(), MANNERS)
    lost = replace(CALM, workers=[worker("x", ""), worker("y", "a")], unplaced=1, nodes=[])
    assert plan(replace(lost, at_s=101.5), past, MANNERS)[0] == Orders()
    orders, past = plan(replace(lost, at_s=102.5), past, MANNERS)
    assert orders == Orders(evict=("x",))
    assert plan(replace(CALM, at_s=103.0), past, MANNERS)[0] == Orders()


def test_live_turns_say_what_the_autoscaler_will_ask_for() -> None:
    rules = Rules(least=1, most=4, target_load=0.7, spare=1)
    assert coming(0, 8, 1, rules) == 0
    assert coming(7, 8, 1, rules) == 2
    assert coming(7, 8, 3, rules) == 0
    assert coming(500, 8, 1, rules) == 3, "it may not have more"


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 12),
)
def test_only_workers_that_are_there_go_and_no_more_than_somebody_needs(
    gpus: list[int], waiting: int, about: int, hands: int
) -> None:
    sight = Sight(
        at_s=50.0,
        nodes=[node(str(at), float(free)) for at, free in enumerate(gpus)],
        waiting=[ONE] * waiting,
        coming=about,
        workers=[worker(f"w{n}", str(n % len(gpus)), float(n)) for n in range(hands)],
    )
    orders, _ = plan(sight, Past(), MANNERS)
    short = max(0, waiting + about - sum(gpus))
    assert len(set(orders.evict)) == len(orders.evict) == min(short, hands)
    assert not (orders.evict and orders.hire)
    assert orders.hire == (0 if waiting + about else max(0, min(sum(gpus), MANNERS.most - hands)))
