"""Who takes part in a run, from who is dead and who is reached."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from placewright.adapt.roster import TRIES, Roster
from placewright.errors import InputError, RunError, WorkerError

ERROR = WorkerError("no answer in time")


def asking(reachable: Callable[[Sequence[str]], Collection[str]]) -> Roster:
    """Of four devices; the function says which of those it is given can talk to each other."""
    cluster = SimpleNamespace(device_names=("d", "a", "c", "b"))
    job: Any = SimpleNamespace(cluster=cluster, reachable=reachable)
    return Roster(job, rejoin_every=5)


def roster(reached: set[str]) -> Roster:
    """One whose devices in the set, which may change, can talk to each other."""
    return asking(lambda names: reached & set(names))


def test_the_dead_and_the_unreached_are_lost() -> None:
    """Those who are left keep the cluster's order; who is due and answers again may come back."""
    reached = {"a", "c", "d"}
    crew = roster(reached)
    assert crew.missed({"c"}, ERROR, 3) == {"b", "c"}
    assert crew.told({"b", "c"}) == "lost b (looked for after step 8), c (looked for after step 8)"
    assert crew.alive() == ("d", "a")
    assert crew.back(7) == set()
    assert crew.back(8) == {"c"}
    reached.add("b")
    assert crew.back(12) == {"c"}
    assert crew.back(13) == {"b", "c"}
    crew.rejoin({"b"}, 13)
    assert crew.alive() == ("d", "a", "b")
    assert crew.missed({"b"}, ERROR, 14) == {"b"}
    assert crew.back(23) == {"c"}
    assert crew.back(24) == {"b", "c"}


def test_those_who_come_back_must_reach_those_who_take_part() -> None:
    """Where no two can talk the first one named is said to be reached: it is no way back."""
    for found, expected in (("d", ""), ("da", ""), ("", ""), ("b", ""), ("ba", "a")):
        crew = roster(set(found))
        crew.lost = {"d", "a", "c"}
        assert crew.back(5) == set(expected)


def test_where_all_are_dead_it_is_asked_whether_anything_is_left() -> None:
    """A testbed that was taken down says so; a job without one has lost its devices."""
    crew = roster({"a", "b", "c", "d"})
    assert crew.missed(set("abcd"), ERROR, 1) == set("abcd")
    assert crew.alive() == ()

    def down(names: Sequence[str]) -> set[str]:
        raise RunError(f"taken down: {', '.join(names)}")

    with pytest.raises(RunError, match="taken down: d, a, c, b"):
        asking(down).missed(set("abcd"), ERROR, 1)


def test_newcomers_are_to_blame_where_nobody_is_gone() -> None:
    """Once: after a start that succeeded they are like the others."""
    crew = roster({"a", "b", "c", "d"})
    crew.missed({"a", "b"}, ERROR, 0)
    crew.rejoin({"a"}, 5)
    assert crew.missed({"c"}, ERROR, 5) == {"c"}
    assert crew.missed((), InputError("no machine"), 5) == {"a"}
    crew.tries = 0
    assert crew.missed((), ERROR, 5) == set()
    crew.rejoin({"b"}, 6)
    crew.started()
    assert crew.missed((), ERROR, 6) == set()
    assert crew.alive() == ("d", "b")


def test_a_fault_of_nobodys_is_tried_a_few_times() -> None:
    """Then it is raised as it was; the tries begin anew when workers do what they are told."""
    crew = roster({"a", "b", "c", "d"})
    for _ in range(2):
        for _ in range(TRIES):
            assert crew.missed((), ERROR, 1) == set()
        crew.tries = 0
    for _ in range(TRIES):
        crew.missed((), ERROR, 1)
    with pytest.raises(WorkerError) as caught:
        crew.missed((), ERROR, 1)
    assert caught.value is ERROR
    assert crew.missed({"a"}, ERROR, 1) == {"a"}
