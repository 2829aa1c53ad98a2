"""Who takes part in a run, from who is dead and who is reached."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from placewright.adapt.membership import TRIES, Membership
from placewright.errors import InputError, RunError, WorkerError

ERROR = WorkerError("no answer in time")


def asking(reachable: Callable[[Sequence[str]], Collection[str]]) -> Membership:
    """Of four devices; the function says which of those it is given can talk to each other."""
    cluster = SimpleNamespace(device_names=("d", "a", "c", "b"))
    job: Any = SimpleNamespace(cluster=cluster, reachable=reachable)
    return Membership(job, rejoin_every=5)


def membership(reached: set[str]) -> Membership:
    """One whose devices in the set, which may change, can talk to each other."""
    return asking(lambda names: reached & set(names))


def test_the_dead_and_the_unreached_are_lost() -> None:
    """Those who are left keep the cluster's order; who is due and answers again may come back."""
    reached = {"a", "c", "d"}
    device_group = membership(reached)
    assert device_group.missed({"c"}, ERROR, 3) == {"b", "c"}
    assert (
        device_group.told({"b", "c"})
        == "lost b (looked for after step 8), c (looked for after step 8)"
    )
    assert device_group.alive() == ("d", "a")
    assert device_group.back(7) == set()
    assert device_group.back(8) == {"c"}
    reached.add("b")
    assert device_group.back(12) == {"c"}
    assert device_group.back(13) == {"b", "c"}
    device_group.rejoin({"b"}, 13)
    assert device_group.alive() == ("d", "a", "b")
    assert device_group.missed({"b"}, ERROR, 14) == {"b"}
    assert device_group.back(23) == {"c"}
    assert device_group.back(24) == {"b", "c"}


def test_those_who_come_back_must_reach_those_who_take_part() -> None:
    """Where no two can talk the first one named is said to be reached: it is no way back."""
    for found, expected in (("d", ""), ("da", ""), ("", ""), ("b", ""), ("ba", "a")):
        device_group = membership(set(found))
        device_group.lost = {"d", "a", "c"}
        assert device_group.back(5) == set(expected)


def test_where_all_are_dead_it_is_asked_whether_anything_is_left() -> None:
    """A testbed that was taken down says so; a job without one has lost its devices."""
    device_group = membership({"a", "b", "c", "d"})
    assert device_group.missed(set("abcd"), ERROR, 1) == set("abcd")
    assert device_group.alive() == ()

    def down(names: Sequence[str]) -> set[str]:
        raise RunError(f"taken down: {', '.join(names)}")

    with pytest.raises(RunError, match="taken down: d, a, c, b"):
        asking(down).missed(set("abcd"), ERROR, 1)


def test_newcomers_are_to_blame_where_nobody_is_gone() -> None:
    """Once: after a start that succeeded they are like the others."""
    device_group = membership({"a", "b", "c", "d"})
    device_group.missed({"a", "b"}, ERROR, 0)
    device_group.rejoin({"a"}, 5)
    assert device_group.missed({"c"}, ERROR, 5) == {"c"}
    assert device_group.missed((), InputError("no machine"), 5) == {"a"}
    device_group.tries = 0
    assert device_group.missed((), ERROR, 5) == set()
    device_group.rejoin({"b"}, 6)
    device_group.started()
    assert device_group.missed((), ERROR, 6) == set()
    assert device_group.alive() == ("d", "b")


def test_a_fault_of_nobodys_is_tried_a_few_times() -> None:
    """Then it is raised as it was; the tries begin anew when workers do what they are told."""
    device_group = membership({"a", "b", "c", "d"})
    for _ in range(2):
        for _ in range(TRIES):
            assert device_group.missed((), ERROR, 1) == set()
        device_group.tries = 0
    for _ in range(TRIES):
        device_group.missed((), ERROR, 1)
    with pytest.raises(WorkerError) as caught:
        device_group.missed((), ERROR, 1)
    assert caught.value is ERROR
    assert device_group.missed({"a"}, ERROR, 1) == {"a"}
