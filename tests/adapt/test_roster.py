"""Who takes part in a run, from who is dead and who is reached."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from placewright.adapt.roster import TRIES, Roster
from placewright.errors import WorkerError

ERROR = WorkerError("no answer in time")


def roster(reached: set[str]) -> Roster:
    """Of four devices; the set says which of them can talk to each other, and may change."""

    def reachable(names: Sequence[str]) -> set[str]:
        return reached & set(names)

    cluster = SimpleNamespace(device_names=("d", "a", "c", "b"))
    job: Any = SimpleNamespace(cluster=cluster, reachable=reachable)
    return Roster(job)


def test_the_dead_and_the_unreached_are_lost() -> None:
    """Those who are left keep the cluster's order; who answers again may come back."""
    reached = {"a", "c", "d"}
    crew = roster(reached)
    assert crew.missed({"c"}, ERROR) == {"b", "c"}
    assert crew.alive() == ("d", "a")
    assert crew.back() == {"c"}
    reached.add("b")
    assert crew.back() == {"b", "c"}


def test_a_fault_of_nobodys_is_tried_a_few_times() -> None:
    """Then it is raised as it was; the tries begin anew when workers do what they are told."""
    crew = roster({"a", "b", "c", "d"})
    for _ in range(2):
        for _ in range(TRIES):
            assert crew.missed((), ERROR) == set()
        crew.tries = 0
    for _ in range(TRIES):
        crew.missed((), ERROR)
    with pytest.raises(WorkerError) as caught:
        crew.missed((), ERROR)
    assert caught.value is ERROR
    assert crew.missed({"a"}, ERROR) == {"a"}
