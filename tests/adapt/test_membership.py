"""Members of a run, computed from dead and unreachable workers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Sequence
from itertools import combinations
from pathlib import Path

import pytest

from placewright.adapt.membership import (
    FORGIVEN,
    TRIES,
    Membership,
    RejoinBackoff,
    all_talk,
    largest_clique,
)
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import InputError, RunError, WorkerError
from placewright.testbed import Testbed
from placewright.testbed.record import NodeHandle
from placewright.testbed.testbed import missing

ERROR = WorkerError("no answer in time")


def membership(reachable: Callable[[Sequence[str]], Collection[str]]) -> Membership:
    """Of four devices; the function says which of those it is given can talk to each other."""
    return Membership(("d", "a", "c", "b"), reachable, rejoin_every=5)


def members_among(reached: set[str]) -> Membership:
    """One whose devices in the set, which may change, can talk to each other."""
    return membership(lambda names: reached & set(names))


def test_the_dead_and_the_unreached_are_lost() -> None:
    """Those who are left keep the cluster's order; who is due and answers again may come back."""
    reached = {"a", "c", "d"}
    members = members_among(reached)
    assert members.strike({"c"}, ERROR, 3) == {"b", "c"}
    assert (
        members.losses({"b", "c"})
        == "lost b (looked for after step 8), c (looked for after step 8)"
    )
    assert members.alive() == ("d", "a")
    assert members.back(7) == set()
    assert members.back(8) == {"c"}
    reached.add("b")
    assert members.back(12) == {"c"}
    assert members.back(13) == {"b", "c"}
    members.rejoin({"b"}, 13)
    assert members.alive() == ("d", "a", "b")
    assert members.strike({"b"}, ERROR, 14) == {"b"}
    assert members.back(23) == {"c"}
    assert members.back(24) == {"b", "c"}


def test_those_who_come_back_must_reach_those_who_take_part() -> None:
    """Where no two can talk the first one counts as reached, which is no way back."""
    for found, expected in (("d", ""), ("da", ""), ("", ""), ("b", ""), ("ba", "a")):
        members = members_among(set(found))
        members.lost = {"d", "a", "c"}
        assert members.back(5) == set(expected)


def test_the_error_after_all_workers_died_names_the_cause() -> None:
    """A testbed that was taken down says so; a job without one has lost its devices."""
    members = members_among({"a", "b", "c", "d"})
    assert members.strike(set("abcd"), ERROR, 1) == set("abcd")
    assert members.alive() == ()

    def down(names: Sequence[str]) -> set[str]:
        raise RunError(f"taken down: {', '.join(names)}")

    with pytest.raises(RunError, match="taken down: d, a, c, b"):
        membership(down).strike(set("abcd"), ERROR, 1)


def test_rejoined_workers_are_suspected_where_no_other_is_lost() -> None:
    """Once: after a start that succeeded they are like the others."""
    members = members_among({"a", "b", "c", "d"})
    members.strike({"a", "b"}, ERROR, 0)
    members.rejoin({"a"}, 5)
    assert members.strike({"c"}, ERROR, 5) == {"c"}
    assert members.strike((), InputError("no machine"), 5) == {"a"}
    members.tries = 0
    assert members.strike((), ERROR, 5) == set()
    members.rejoin({"b"}, 6)
    members.started()
    assert members.strike((), ERROR, 6) == set()
    assert members.alive() == ("d", "b")


def test_a_fault_without_a_lost_worker_is_retried() -> None:
    """Then it is raised as it was; the count of retries starts anew after a success."""
    members = members_among({"a", "b", "c", "d"})
    for _ in range(2):
        for _ in range(TRIES):
            assert members.strike((), ERROR, 1) == set()
        members.tries = 0
    for _ in range(TRIES):
        members.strike((), ERROR, 1)
    with pytest.raises(WorkerError) as caught:
        members.strike((), ERROR, 1)
    assert caught.value is ERROR
    assert members.strike({"a"}, ERROR, 1) == {"a"}


def test_every_loss_doubles_the_wait() -> None:
    """A device that dies as soon as it is back costs a restart after 5, 10, 20, ... steps."""
    backoff, step, waits = RejoinBackoff(5), 100, []
    for _ in range(6):
        backoff.lost(step)
        waits.append(backoff.until - step)
        step = backoff.until + 1
        backoff.returned(step)
    assert waits == [5, 10, 20, 40, 80, 160]


def test_a_long_stay_resets_the_rejoin_delay() -> None:
    """Longer than so many times its wait; and a look that finds nothing is repeated."""
    backoff = RejoinBackoff(5)
    backoff.lost(0)
    backoff.returned(7)
    backoff.lost(7 + FORGIVEN * 5)
    assert backoff.until == 7 + FORGIVEN * 5 + 10
    backoff.unanswered(80)
    assert backoff.until == 85
    backoff.returned(90)
    backoff.lost(91 + FORGIVEN * 10)
    assert backoff.until == 91 + FORGIVEN * 10 + 5


def test_where_none_is_left_those_that_answer_are_taken_back_a_few_times() -> None:
    """Again after a step, and never where that has helped to none."""
    members = members_among({"a", "c"})
    for _ in range(TRIES):
        members.lost = set("abcd")
        assert members.revive(3) == {"a", "c"}
        assert members.alive() == ("a", "c")
    members.lost = set("abcd")
    assert members.revive(3) == set()
    members.completed()
    assert members.revive(4) == {"a", "c"}


def test_no_members_without_devices() -> None:
    """Which is not a testbed that was taken down."""
    assert all_talk([]) == frozenset()


def test_a_testbed_that_is_gone_says_so(tmp_path: Path) -> None:
    """Its control groups are not there; the devices are named."""
    handles = [NodeHandle(n, n, (str(tmp_path / n),), (0,), "10.0.0.1", "eth0") for n in "ab"]
    with pytest.raises(RunError, match="a, b: the testbed has been taken down"):
        all_talk(handles)


def test_the_largest_set_is_that_of_trying_all() -> None:
    """Random cuts, the first of equals; 40 nodes of which most pairs are cut end soon."""
    rng = random.Random(0)

    def cuts(n: int, share: float) -> dict[int, set[int]]:
        apart: dict[int, set[int]] = {k: set() for k in range(n)}
        for a, b in combinations(range(n), 2):
            if rng.random() < share:
                apart[a].add(b)
                apart[b].add(a)
        return apart

    for n in range(8):
        for share in (0.1, 0.3, 0.6, 0.9):
            apart = cuts(n, share)
            subsets = (list(s) for size in range(n, -1, -1) for s in combinations(range(n), size))
            best = next(s for s in subsets if not any(b in apart[a] for a in s for b in s))
            assert largest_clique(list(range(n)), apart) == best
    assert len(largest_clique(list(range(40)), cuts(40, 0.7))) >= 4


@pytest.mark.skipif(missing() is not None, reason=f"no testbed here: {missing()}")
def test_nodes_with_a_cut_link_are_in_different_sets() -> None:
    """Of the largest sets the first; all three again when the link is back."""
    names = ("a", "b", "c")
    links = tuple(Link(x, y, 1e7, 1e-3) for x in names for y in names if x != y)
    devices = tuple(Device(name, node=name, speed=0.2) for name in names)
    with Testbed.up(Cluster(devices, links, f"connectivity {os.getpid()}")) as bed:
        handles = [bed.handle(name) for name in names]
        assert all_talk(handles) == {"a", "b", "c"}
        bed.cut("b", "a")
        bed.cut("a", "b")
        assert all_talk(handles) == {"a", "c"}
        bed.restore("b", "a")
        bed.restore("a", "b")
        assert all_talk(handles) == {"a", "b", "c"}
