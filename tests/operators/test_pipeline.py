"""Copies of stages, clusters of accelerators and separate passes, as the judge counts them."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InfeasibleError, InputError
from placewright.operators.bounds import bounds
from placewright.operators.conformance import tiny
from placewright.operators.files import problem_json, read_problem, write_problem
from placewright.operators.judge import judge
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.pbqp import CeftPbqp
from placewright.operators.planners.search import Search
from placewright.planning.contract import Context, proposal_of
from tests.operators.pipelines import best_pipeline, piped


def test_no_plan_beats_the_bounds() -> None:
    """Copies share work, so a group's time is no bound for them."""
    for seed in range(20):
        p = piped(seed)
        best = best_pipeline(p)
        if best < np.inf:
            assert max(bounds(p).values()) <= best * (1 + 1e-12)


def test_copies_over_links_take_turns() -> None:
    """Two copies that feed one reader: each sends half over its own link, or all over one."""
    p = tiny(
        [[4.0, 4.0, 8.0], [9.0, 9.0, 1.0]],
        [(0, 9.0, [1])],
        objective="throughput",
        resident_bytes=[3.0, 0.0],
        pipeline=Pipeline(replication=True, sync_seconds_per_byte=0.5),
    )
    alone = OperatorPlan(np.array([0, 2]))
    copied = OperatorPlan(np.array([0, 2]), replica_of=np.array([0, 0, 2]))
    assert judge(p, alone).value == 9.0
    assert judge(p, copied).value == 9.0 / 2
    bus = p.replace(channel=np.where(p.channel >= 0, 0, -1))
    assert judge(bus, copied).value == 9.0
    quick = p.replace(seconds_per_byte=0.1 * p.seconds_per_byte)
    assert judge(quick, copied).value == 4.0 / 2 + 0.5 * 3.0
    assert judge(p, copied).peak_bytes.tolist()[:2] == [12, 12]


def test_passes_over_links_are_added_up() -> None:
    """Forward on one device and backward on the other: the largest of each counts."""
    p = tiny(
        [[4.0, 4.0], [3.0, 3.0]],
        [(0, 5.0, [1])],
        objective="throughput",
        is_backward=[False, True],
        pipeline=Pipeline(diffmaxima=True),
    )
    assert judge(p, OperatorPlan(np.array([0, 0]))).value == 7.0
    assert judge(p, OperatorPlan(np.array([0, 1]))).value == 5.0 + 3.0


def test_search_spreads_each_pass() -> None:
    """One forward and one backward operator on each device, not a pass on each."""
    p = tiny(
        [[1.0, 1.0]] * 4,
        objective="throughput",
        is_backward=[False, False, True, True],
        pipeline=Pipeline(diffmaxima=True),
    )
    apart = OperatorPlan(np.array([0, 0, 1, 1]))
    assert judge(p, apart).value == 4.0
    for planner in (Search(effort=2e5, first=2e4), CeftPbqp(effort=2e5)):
        plan = proposal_of(planner(p, Context(incumbent=apart, bound=2.0))).plan
        assert judge(p, plan).value == 2.0


@pytest.mark.parametrize(
    ("leader", "what"),
    [([1, 1, 2], "cannot be a copy"), ([0, 2, 2], "cannot be a copy"), ([0, 1, 0], "unlike")],
)
def test_copies_that_cannot_be_are_refused(leader: list[int], what: str) -> None:
    """Of devices that differ, that have operators of their own, or that are copies."""
    p = tiny([[1.0, 1.0, 2.0]] * 2, objective="throughput", pipeline=Pipeline(replication=True))
    place = [0, 1] if leader[1] == 1 and leader[0] == 1 else [0, 0]
    place = [1, 1] if leader == [0, 2, 2] else place
    with pytest.raises(InputError, match=what):
        judge(p, OperatorPlan(np.array(place), replica_of=np.array(leader)))


def test_pinned_operators_are_not_copied() -> None:
    """A copy would run them elsewhere, in less time than bounds allow them."""
    p = tiny(
        [[4.0, 4.0]] * 2,
        objective="throughput",
        pinned=[0, -1],
        pipeline=Pipeline(replication=True),
    )
    with pytest.raises(InfeasibleError, match="'op0' cannot be copied to 'dev1'"):
        judge(p, OperatorPlan(np.array([0, 0]), replica_of=np.array([0, 0])))


def test_a_problem_that_asks_for_none_refuses_copies() -> None:
    """And says which option asks for them."""
    p = tiny([[1.0, 1.0]], objective="throughput")
    with pytest.raises(InputError, match="replication"):
        judge(p, OperatorPlan(np.array([0]), replica_of=np.array([0, 0])))


def test_files_keep_the_pipeline(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """And leave it out where there is nothing to say, so that hashes stay."""
    for seed in range(20):
        p = piped(seed)
        again = read_problem(write_problem(p, tmp_path / "p.json"))
        assert again.pipeline == p.pipeline
        assert again.hash() == p.hash()
    assert "pipeline" not in problem_json(tiny([[1.0]]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"sync_seconds_per_byte": -1.0},
        {"cluster": (0, 0)},
        {"cluster": (-2,), "cluster_seconds_per_byte": (1.0,)},
        {"cluster": (0,), "cluster_seconds_per_byte": (float("nan"),)},
    ],
)
def test_a_pipeline_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    """Negative prices, tables of unlike length, clusters below -1."""
    with pytest.raises(InputError):
        Pipeline(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("links", ["contended", "free"])
def test_copies_need_links_too(links: str) -> None:
    """The second device of the first stage has none to the second stage."""
    far = np.array([[0.0, np.inf, 1.0], [np.inf, 0.0, np.inf], [1.0, np.inf, 0.0]])
    problem = tiny(
        [[1.0, 1.0, 1.0]] * 2,
        [(0, 0.0, [1])],
        seconds_per_byte=far,
        channel=np.where(np.isfinite(far), np.arange(9).reshape(3, 3), -1),
        channel_names=tuple(map(str, range(9))),
        objective="throughput",
        links=links,
        pipeline=Pipeline(replication=True),
    )
    plan = OperatorPlan(np.array([0, 2]), replica_of=np.array([0, 0, 2]))
    found = judge(problem, plan)
    assert not found.feasible
    assert found.value == np.inf
    assert found.violation == "no link from 'dev1' to 'dev2'"
