"""Loads over links and through host memory, and contiguity against a slow reference."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.operators.conformance import problems, random_placement, tiny
from placewright.operators.costs import break_of_chain
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Objective, OperatorProblem
from placewright.operators.simulation.loads import link_loads, link_period_s, star_loads
from tests.operators.simulation.reference import readers
from tests.operators.star_cases import star


def no_more(one: float, other: float) -> bool:
    """Not above, but for sums in another order."""
    return one <= other * (1 + 1e-12)


@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_samples_take_no_longer_apart_than_one_alone(data: st.DataObject) -> None:
    """The period is no more than the makespan, and no more over faster or over free links."""
    problem = data.draw(problems(objective=Objective.THROUGHPUT))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    plan = OperatorPlan(random_placement(problem, rng))
    judgement = judge(problem, plan)
    assert no_more(judgement.value, judgement.makespan_s)
    assert no_more(float(judgement.busy_s.max()), judgement.value)
    faster = np.where(rng.random((problem.m, problem.m)) < 0.5, 0.5, 1.0)
    quick = problem.replace(
        latency_s=faster * problem.latency_s, seconds_per_byte=faster * problem.seconds_per_byte
    )
    assert no_more(judge(quick, plan).value, judgement.value)
    assert no_more(judge(problem.replace(links="free"), plan).value, judgement.value)
    assert no_more(judgement.value, judge(problem.replace(overlap="serial"), plan).value)


@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_loads_are_what_one_sample_keeps_busy(data: st.DataObject) -> None:
    """`link_loads` is what the trace shows, track by track; the period is the kernel's."""
    problem = data.draw(problems(objective=Objective.THROUGHPUT))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    plan = OperatorPlan(random_placement(problem, rng))
    judgement, loads = judge(problem, plan), link_loads(problem, plan)
    trace = judgement.trace()
    busy = np.bincount(trace.track, trace.end_s - trace.start_s, len(trace.tracks))
    assert busy == pytest.approx(np.concatenate([loads.device_s, loads.channel_s]))
    assert link_period_s(problem, plan) == judgement.value


def test_the_trace_shows_one_period() -> None:
    """Every device is busy for its load, and the longest takes as long as the value."""
    for seed in range(300):
        p = star(seed, operators=12, devices=4)
        plan = OperatorPlan(random_placement(p, np.random.default_rng(seed)))
        judgement = judge(p, plan)
        trace = judgement.trace()
        assert trace.devices == p.m
        busy = np.bincount(trace.track % p.m, trace.end_s - trace.start_s, p.m)
        assert busy == pytest.approx(star_loads(p, plan).load_s)
        assert trace.duration_s == pytest.approx(judgement.value)


def slow_contiguous(p: OperatorProblem, place: list[int]) -> bool:
    """Whether some order of the devices has every forward edge run forwards."""
    late, group = p.is_backward.tolist(), p.colocation.tolist()
    mates = {group[i] for i in range(p.n) if not late[i]}
    edges = []
    for k in range(p.t):
        i = int(p.tensor_producer[k])
        for j in readers(p, k):
            if not late[i] and not late[j]:
                edges.append((i, j))
            elif late[i] and late[j] and not {group[i], group[j]} <= mates:
                edges.append((j, i))
    return any(
        all(order.index(place[i]) <= order.index(place[j]) for i, j in edges)
        for order in permutations(range(p.m))
    )


def test_contiguity_equals_the_reference() -> None:
    """Every order of the devices tried, twins of backward operators included."""
    seen = {True: 0, False: 0}
    for seed in range(600):
        p = star(seed, operators=12, devices=4)
        p = p.replace(contiguous=True, colocation=np.arange(p.n))
        place = random_placement(p, np.random.default_rng(seed))
        wanted = slow_contiguous(p, place.tolist())
        seen[wanted] += 1
        assert (break_of_chain(p, place) == "") == wanted
    assert min(seen.values()) > 80


def test_a_violation_names_the_operator() -> None:
    """There and back again is not contiguous; the judge says who came back."""
    p = tiny([[1.0, 1.0]] * 3, [(0, 1.0, [1]), (1, 1.0, [2])], contiguous=True)
    judgement = judge(p, OperatorPlan([0, 1, 0]))
    assert not judgement.feasible
    assert "'op1' on 'dev1' follows 'op0' on 'dev0'" in judgement.violation
    assert judge(p, OperatorPlan([0, 0, 1])).feasible


def test_a_group_that_is_backward_only_has_a_mirrored_twin() -> None:
    """Its edges to other backward operators count, against their direction."""
    # forward 0 -> 1; backward 2 (of 1) -> 3 (alone) -> 4 (of 0)
    edges = [(0, 1.0, [1]), (2, 1.0, [3]), (3, 1.0, [4])]
    p = tiny(
        [[1.0, 1.0]] * 5,
        edges,
        colocation=[0, 1, 1, 3, 0],
        is_backward=[False, False, True, True, True],
        contiguous=True,
    )
    assert judge(p, OperatorPlan([0, 1, 1, 1, 0])).feasible
    assert judge(p, OperatorPlan([0, 1, 1, 0, 0])).feasible
    three = tiny([[1.0] * 3] * 5, edges, colocation=[0, 1, 1, 3, 0], contiguous=True,
                 is_backward=[False, False, True, True, True])  # fmt: skip
    assert judge(three, OperatorPlan([0, 1, 1, 2, 0])).feasible
    same = three.replace(colocation=[0, 0, 0, 3, 0])
    assert not judge(same, OperatorPlan([0, 0, 0, 1, 0])).feasible


def test_units_stay_those_of_the_file() -> None:
    """A tensor is paid once by each accelerator that it leaves or enters, never by a CPU."""
    p = tiny(
        [[1.0, 2.0, 9.0]] * 3,
        [(0, 4.0, [1, 2])],
        objective="throughput",
        communication="star",
        host_seconds_per_byte=[1.0, 1.0, 0.0],
    )
    assert judge(p, OperatorPlan([0, 1, 1])).value == pytest.approx(8.0)
    assert judge(p, OperatorPlan([0, 0, 1])).value == pytest.approx(6.0)
    assert judge(p, OperatorPlan([0, 0, 2])).value == pytest.approx(9.0)
