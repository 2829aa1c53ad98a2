"""Exact latency of calls through host memory."""

from __future__ import annotations

import time

import pytest

from placewright.errors import InfeasibleError
from placewright.operators.judge import judge
from placewright.operators.planners import exact_latency
from placewright.operators.planners.exact_latency import ExactLatency, one_call_each
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.neural_networks import read_msr
from placewright.planning.candidates import Status
from placewright.planning.contract import Context
from placewright.planning.solving import solve
from placewright.testing import PlannerConformance
from tests.operators.star_instances import best_latency, star_problem
from tests.published import published


class TestExactLatency(PlannerConformance):
    """What every planner keeps to."""

    def planner(self, problem: OperatorProblem) -> ExactLatency:
        """Behind `exact`, which asks it for latency."""
        return ExactLatency()


@pytest.mark.parametrize(
    ("calls", "alike", "groups"),
    [(1, True, True), (1, False, True), (2, True, False), (2, False, False)],
)
def test_no_placement_is_shorter(calls: int, alike: bool, groups: bool) -> None:
    """Brute force over all placements and calls; where the planner claims a proof it has one."""
    proofs = 0
    for seed in range(40 if calls == 1 else 25):
        p = star_problem(
            seed, operators=6 if calls == 1 else 4, calls=calls, alike=alike, groups=groups
        )
        try:
            proposal = ExactLatency()(p, Context(judge=judge))
            plan = proposal.plan
        except InfeasibleError:
            assert best_latency(p) == float("inf")
            continue
        judgement = judge(p, plan)
        best = best_latency(p)
        assert judgement.feasible
        assert proposal.bound <= best * (1 + 1e-12)
        assert judgement.value >= best * (1 - 1e-12)
        if not proposal.note:
            assert proposal.bound == judgement.value
            assert judgement.value == pytest.approx(best, rel=1e-12)
            proofs += 1
    assert proofs > 15


def test_an_accelerator_without_a_memory_limit() -> None:
    """Its memory is not the measure of what another one has left; nor is any of it warned about."""
    proofs = 0
    for seed in range(30):
        p = star_problem(seed, operators=6, alike=False)
        p = p.replace(memory_bytes=[float("inf"), p.memory_bytes[1], float("inf")])
        proposal, best = ExactLatency()(p, Context(judge=judge)), best_latency(p)
        assert proposal.bound <= best * (1 + 1e-12)
        if not proposal.note:
            assert judge(p, proposal.plan).value == pytest.approx(best, rel=1e-12)
            proofs += 1
    assert proofs > 15


@pytest.mark.parametrize(
    ("name", "known_ms", "optimum_ms"),
    [
        ("layer_bert24", 100.2185, 100.2185),
        ("layer_gnmt", 225.648, 225.64789),
        ("op_bert3", 408.475, 408.47441),
        ("op_resnet50", 755.80, 651.12076),
    ],
)
def test_published_workloads_are_proved(name: str, known_ms: float, optimum_ms: float) -> None:
    """At or below the best value known before, and nothing is shorter."""
    problem = read_msr(published(f"msr/latency/{name}_inference.json"), "latency")
    result = solve(problem, "exact", time_limit_s=120)
    assert result.status is Status.OPTIMAL
    assert 1e3 * result.value <= known_ms * (1 + 1e-5)
    assert 1e3 * result.value == pytest.approx(optimum_ms, rel=1e-6)


def test_a_deadline_in_the_past_still_gives_a_plan() -> None:
    """At worst everything on one device."""
    p = star_problem(3, accelerators=3)
    proposal = ExactLatency()(p, Context(judge=judge, deadline_s=time.perf_counter()))
    plan = proposal.plan
    assert judge(p, plan).feasible
    assert proposal.bound <= best_latency(p)


def test_an_interrupt_hands_the_best_plan_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the first pass: what is known by then."""

    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exact_latency, "best_chain", pressed)
    p = star_problem(3, accelerators=3)
    proposal = ExactLatency()(p, Context(judge=judge))
    plan = proposal.plan
    assert proposal.interrupted
    assert judge(p, plan).feasible


@pytest.mark.parametrize("seed", [*range(12), 1246])
def test_joined_chains_find_the_optimum_too(seed: int) -> None:
    """With few ideals allowed the passes over joined chains run; proofs stay true."""
    p = star_problem(seed, operators=6, accelerators=2)
    try:
        plan = ExactLatency(coarse_ideals=4)(p, Context(judge=judge)).plan
    except InfeasibleError:
        assert best_latency(p) == float("inf")
        return
    assert judge(p, plan).value == pytest.approx(best_latency(p), rel=1e-12)


def test_calls_are_limited_by_the_number_of_operators() -> None:
    """With 2^53 calls the plans are worth what they are with one per operator, and as proved."""
    for seed in range(12):
        few = star_problem(seed, operators=5, accelerators=2)
        few = few.replace(calls=few.n)
        many = few.replace(calls=2**53)
        assert one_call_each(many).m == one_call_each(few).m
        proposals = [ExactLatency()(p, Context()) for p in (few, many)]
        assert judge(many, proposals[1].plan).value == judge(few, proposals[0].plan).value
        assert proposals[1].bound == pytest.approx(proposals[0].bound)
