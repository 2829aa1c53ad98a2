"""Exact throughput over links equals brute force, contiguous or not."""

from __future__ import annotations

import math
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.conformance import (
    named_instances,
    random_placement,
    random_problem,
    tiny,
)
from placewright.operators.judge import judge
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners import exact_links
from placewright.operators.planners.exact import Exact
from placewright.operators.planners.exact_links import ExactLinks, anneal, lines_of_stand_ins
from placewright.operators.planners.pipelines.links import contract_pairs
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.neural_networks import read_pipedream
from placewright.planning.candidates import Status
from placewright.planning.contract import Context
from placewright.planning.solving import solve
from tests.operators.star_cases import best_value
from tests.published import published

pytest.importorskip("highspy")
QUICK = ExactLinks(moves=50)


def linked(seed: int, *, contiguous: bool, passes: bool = False) -> OperatorProblem:
    """A random problem; every third has links that are all alike, every fifth devices that are.

    Channels are shared at random; in one of four problems links are free or nothing overlaps.
    """
    p = random_problem(seed, most_operators=6, most_devices=3, objective="throughput")
    if seed % 3 == 0:
        off = 1.0 - np.eye(p.m)
        p = p.replace(latency_s=0.25 * off, seconds_per_byte=0.5 * off)
    if seed % 5 == 0:
        compute = np.repeat(np.where(np.isfinite(p.compute_s[:, :1]), 1.0, 2.0), p.m, axis=1)
        p = p.replace(compute_s=compute, pinned=np.full(p.n, -1))
    late = np.zeros(p.n, dtype=bool)
    late[p.topology.order[p.n // 2 :]] = seed % 2 == 0
    if seed % 4 == 1:
        p = p.replace(**({"links": "free"} if seed % 8 == 1 else {"overlap": "serial"}))
    pipeline = Pipeline(diffmaxima=passes)
    return p.replace(contiguous=contiguous, is_backward=late, pipeline=pipeline)


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("contiguous", [True, False])
def test_plans_equal_brute_force(contiguous: bool, passes: bool) -> None:
    """With proof where memory is not short; never a bound above the optimum."""
    found = proved = 0
    seeds = range(0, 60, 2) if passes else range(30)
    for seed in seeds:
        problem = linked(seed, contiguous=contiguous, passes=passes)
        wanted = best_value(problem)
        if wanted == np.inf:
            with pytest.raises(InfeasibleError):
                QUICK(problem, Context())
            continue
        proposal = QUICK(problem, Context())
        plan = proposal.plan
        judgement = judge(problem, plan)
        assert judgement.feasible, judgement.violation
        assert (proposal.bound or 0.0) <= wanted * (1 + 1e-9)
        if not np.isfinite(problem.memory_bytes).any():
            assert judgement.value == pytest.approx(wanted, rel=1e-5)
            assert proposal.bound >= wanted * (1 - 1e-5)
        found += 1
        proved += judgement.value <= wanted * (1 + 1e-5)
    assert found > len(seeds) * 2 / 3
    assert proved >= found - 2


def test_devices_without_a_link_do_not_talk() -> None:
    """The plan keeps both ends of a tensor together."""
    problem = named_instances()["unlinked"].replace(objective="throughput")
    proposal = QUICK(problem, Context())
    plan = proposal.plan
    assert judge(problem, plan).value == 3.0
    assert proposal.bound == pytest.approx(3.0, rel=1e-6)


def test_loads_are_those_of_the_judge() -> None:
    """The contracted problem loses nothing."""
    for seed in range(100):
        problem = random_problem(seed, objective="throughput")
        late = np.random.default_rng(seed).random(problem.n) < 0.5
        problem = problem.replace(
            memory_bytes=np.full(problem.m, np.inf),
            is_backward=late,
            pipeline=Pipeline(diffmaxima=seed % 2 == 0),
            links=("contended", "free")[seed % 5 == 0],
            overlap=("parallel", "serial")[seed % 7 == 0],
        )
        c = contract_pairs(problem, contiguous=False)
        place = random_placement(problem, np.random.default_rng(seed))
        value = judge(problem, OperatorPlan(place)).value
        assert c.value_s(c.of_nodes(place)) == pytest.approx(value, rel=1e-9)


def test_annealing_never_worsens_a_plan_nor_breaks_it() -> None:
    """Loads, memory, and the chain of a contiguous plan."""
    better = 0
    for seed in range(60):
        problem = linked(seed, contiguous=seed % 2 == 0, passes=seed % 3 == 0)
        try:
            c = contract_pairs(problem, contiguous=problem.contiguous)
        except InfeasibleError:
            continue
        start = np.array([int(np.argmin(c.work_s.sum(axis=0)))] * c.nodes)
        before = c.value_s(start)
        if not (np.isfinite(before) and c.fits(start)):
            continue
        found = anneal(c, start, moves=2_000, heat=0.3, seed=seed)
        assert c.fits(found)
        assert c.value_s(found) <= before
        judgement = judge(problem, OperatorPlan(c.placement(found)))
        assert "contiguous" not in judgement.violation
        better += c.value_s(found) < before
    assert better > 10


def test_a_published_graph_is_proved() -> None:
    """A training step of AlexNet over four GPUs; a plan that need not be contiguous is no worse."""
    from placewright.cluster.files import load_cluster

    cluster = load_cluster("server-4gpu")
    problem = read_pipedream(published("pipedream/alexnet.graph.txt"), cluster)
    result = solve(problem.replace(contiguous=True), Exact(), time_limit_s=200)
    assert result.status is Status.OPTIMAL
    free = solve(problem, Exact())
    assert free.lower_bound <= result.value
    assert free.value <= result.value * (1 + 1e-9)


def test_without_time_the_best_single_device_is_the_plan() -> None:
    """Nothing is annealed, no line is cut and no program is built."""
    problem = tiny([[1.0, 2.0]] * 6, [(i, 0.1, [i + 1]) for i in range(5)], objective="throughput")
    assert len(lines_of_stand_ins(problem, math.inf)) == 2
    assert lines_of_stand_ins(problem, 0.0) == []
    proposal = ExactLinks()(problem, Context(deadline_s=0.0))
    plan = proposal.plan
    assert plan.placement.tolist() == [0] * 6
    assert proposal.bound == 0.0


CHAIN = tiny([[1.0, 1.0]] * 6, [(i, 0.1, [i + 1]) for i in range(5)], objective="throughput")


def test_a_walk_cools_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks at every look lets ten stretches begin, the last one nearly cold."""
    begun, ticks, most = list[int](), count(), 10**12

    def noted(*arguments: object) -> None:
        begun.append(int(arguments[2]))  # type: ignore[call-overload]

    monkeypatch.setattr(exact_links, "_run_moves", noted)
    monkeypatch.setattr(
        exact_links, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    )
    c = contract_pairs(CHAIN, contiguous=False)
    exact_links.anneal(
        c, np.zeros(c.nodes, dtype=np.int64), moves=most, heat=0.3, seed=0, deadline_s=20.0
    )
    assert 5 <= len(begun) <= 10
    assert begun[-1] >= 0.8 * most


def test_stretches_are_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at the clock more often changes nothing."""
    c, found = contract_pairs(CHAIN, contiguous=False), list[list[int]]()
    for chunk in (7, 10_000):
        monkeypatch.setattr(exact_links, "CHUNK", chunk)
        place = exact_links.anneal(
            c, np.zeros(c.nodes, dtype=np.int64), moves=500, heat=0.3, seed=4
        )
        found.append(place.tolist())
    assert found[0] == found[1]
    assert c.value_s(np.array(found[0])) < 6.0
