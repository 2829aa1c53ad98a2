"""Every planner of the wing keeps to the conformance kit; all their schedules are valid."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from benchmarks import scale

from placewright.errors import InfeasibleError, OutOfTimeError
from placewright.operators.conformance import named_instances, random_problem, tiny
from placewright.operators.judge import judge
from placewright.operators.planners import planners, portfolio
from placewright.operators.planners.lists.planners import HEFT_CONTENDED
from placewright.operators.planners.lists.ready import M_ETF
from placewright.operators.problem import Links, OperatorProblem, Overlap
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.candidates import Outcome
from placewright.planning.contract import Context, Planner, proposal_of
from placewright.planning.solving import compare, solve
from placewright.testing import PlannerConformance
from tests.operators.validity import assert_valid_schedule
from tests.published import published

OWN = ("round-robin", "random", "topological-split", "heft", "heft-contended", "cpop", "peft")
OF_MEMORY = ("m-topo", "m-etf", "m-sct")


class TestSingle(PlannerConformance):
    """Everything on the first device."""

    def planner(self, problem: OperatorProblem) -> Planner:
        """It is called after its device."""
        return named_planner(f"only:{problem.device_names[0]}", problem)


class TestByName(PlannerConformance):
    """Those that end in a moment; searches and proofs have their own tests."""

    named = (
        *OWN,
        "dls",
        "bil",
        "sufferage",
        *OF_MEMORY,
        "accelerate-auto",
        "ceft",
        "ceft-cpop",
        "pbqp",
        "chain-dp",
        "dpl",
        "dp",
        "min-cut",
    )


def named_planner(name: str, problem: OperatorProblem) -> Planner:
    """One of the wing's planners."""
    return planners(problem)[name]


def quick(problem: OperatorProblem) -> list[Planner]:
    """Planners that take no time: searches have their own tests."""
    known = planners(problem)
    names = {*OWN, *OF_MEMORY, *(["metis"] if find_spec("pymetis") else [])}
    return [p for name, p in known.items() if name in names or name.startswith("only:")]


@pytest.mark.parametrize("links", Links)
@pytest.mark.parametrize("overlap", Overlap)
def test_all_schedules_are_valid(links: Links, overlap: Overlap) -> None:
    """Checked without the judge, on random problems with every constraint."""
    for seed in range(40):
        problem = random_problem(seed, links=links, overlap=overlap)
        for planner in quick(problem):
            if planner.unsupported_reason(problem) is not None:
                continue
            try:
                plan = proposal_of(planner(problem, Context(seed=seed))).plan
            except InfeasibleError:
                continue
            assert_valid_schedule(problem, plan.placement, judge(problem, plan))


@pytest.mark.parametrize("links", Links)
@pytest.mark.parametrize(
    "name", ["layered_n100_ccr5.0_s0", "layered_n1000_ccr1.0_s0", "narrow_n100_ccr1.0_s7"]
)
def test_schedules_of_published_graphs_are_valid(name: str, links: Links) -> None:
    """The same on the dag files."""
    problem = read_dag(published(f"dag/{name}.json"), links)
    for planner in quick(problem):
        if planner.unsupported_reason(problem) is None:
            plan = proposal_of(planner(problem, Context())).plan
            assert_valid_schedule(problem, plan.placement, judge(problem, plan))


def test_a_broken_schedule_is_noticed() -> None:
    """The validity check itself can fail."""
    problem = named_instances()["diamond"]
    other = tiny([[1.0, 2.0], [4.0, 9.0], [3.0, 3.0], [1.0, 1.0]])
    plan = proposal_of(named_planner("heft", other)(other, Context())).plan
    with pytest.raises((AssertionError, KeyError)):
        assert_valid_schedule(problem, plan.placement, judge(other, plan))


def test_the_portfolio_names_planners() -> None:
    """``auto`` tries planners that exist: the device of least load, lists, then other devices."""
    problem = named_instances()["diamond"]
    names = list(portfolio(problem))
    assert set(names) <= set(planners(problem))
    loads_s = problem.compute_s.sum(axis=0)
    best, other = (f"only:dev{d}" for d in loads_s.argsort().tolist())
    assert names[:3] == [best, "heft", "peft"]
    assert names.index("heft-contended") < names.index("round-robin") < names.index(other)


def contended(n: int, m: int) -> OperatorProblem:
    """Operators that devices do at unlike speeds, and links that transfers wait for."""
    alike = scale.instance(n, m)
    unlike = np.random.default_rng([n, m]).uniform(0.5, 2, (n, m))
    return alike.replace(compute_s=alike.compute_s * unlike, links=Links.CONTENDED)


def test_auto_is_never_worse_than_single_devices_and_list_schedules() -> None:
    """Whatever the time limit, none at all too: they run first, and quick ones in any case."""
    for n, m, limit_s in ((40, 2, 0.0), (120, 5, 0.2), (300, 3, 1.0)):
        problem = contended(n, m)
        first = (f"only:{name}" for name in problem.device_names)
        lists = ("heft", "peft", "cpop", "heft-contended")
        rivals = [named_planner(name, problem) for name in (*first, *lists)]
        best = min(judge(problem, rival(problem, Context())).value for rival in rivals)
        found = solve(problem, "auto(tolerance=0)", time_limit_s=limit_s)
        assert found.value <= best * (1 + 1e-9)


def test_a_list_schedule_gives_up_at_the_deadline_where_there_is_a_plan() -> None:
    """Alone it goes on to its end, so that there is a plan."""
    problem = contended(4000, 16)
    late = Context(deadline_s=0.0)
    for planner in (HEFT_CONTENDED, M_ETF):
        plan = planner(problem, late)
        with pytest.raises(OutOfTimeError):
            planner(problem, replace(late, incumbent=plan))


def test_planners_of_too_much_memory_are_left_out_by_name() -> None:
    """Costs of all pairs of 600 devices do not fit; the note says how much they would take."""
    problem = contended(1000, 600)
    result = compare(problem, ["only:dev0", "pbqp", "ceft+pbqp"], bounds=False)
    left_out = [c for c in result.candidates if c.outcome is Outcome.NOT_RUN]
    assert [c.planner for c in left_out] == ["pbqp", "ceft+pbqp"]
    assert all("GiB of memory, the limit is" in c.note for c in left_out)


def test_plans_without_a_schedule_leave_the_order_to_the_judge() -> None:
    """Single devices, round robin and random have no opinion on the order."""
    problem = named_instances()["diamond"]
    for name in ("only:dev0", "round-robin", "random"):
        plan = proposal_of(named_planner(name, problem)(problem, Context())).plan
        assert plan.order is None
