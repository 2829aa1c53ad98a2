"""Exact throughput against brute force and published values, and correct proofs."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.conformance import tiny
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.contiguous_dp import line_or_none
from placewright.operators.planners.exact import Exact, best_of
from placewright.operators.planners.pipelines.contiguous import best_stages
from placewright.operators.planners.pipelines.contraction import contract
from placewright.operators.planners.pipelines.slots import best_cuts, by_trios, plan_of, slot_kinds
from placewright.operators.readers.neural_networks import read_msr
from placewright.planning.candidates import Status
from placewright.planning.contract import Context, proposal_of
from placewright.planning.solving import solve
from placewright.solvers import programs
from placewright.testing import PlannerConformance
from tests.operators.star_cases import best_value, equals_brute_force, star
from tests.published import published

pytest.importorskip("ortools")
pytest.importorskip("highspy")

CONTIGUOUS_MS = {
    "layer_bert24_inference": 17.790,
    "layer_bert24_training": 41.746,
    "layer_gnmt_inference": 32.911,
    "layer_resnet50_inference": 33.775,
    "layer_resnet50_training": 78.632,
    "op_bert3_inference": 27.919,
    "op_bert3_training": 65.303,
    "op_resnet50_inference": 124.349,
}


class TestConformance(PlannerConformance):
    """It declines links and latency, and keeps to the rest."""

    named = "exact"


@pytest.mark.parametrize("name", CONTIGUOUS_MS)
def test_the_published_optimum_is_proved(name: str) -> None:
    """Contiguous, on every workload at hand."""
    problem = read_msr(published(f"msr/throughput/{name}.json"), contiguous=True)
    result = solve(problem, "exact")
    assert result.status is Status.OPTIMAL
    assert 1e3 * result.value == pytest.approx(CONTIGUOUS_MS[name], abs=6e-4)
    assert result.judgement.feasible


def test_stage_numbers_agree_with_ideals() -> None:
    """CP-SAT proves what dynamic programming has proved."""
    name = "op_bert3_inference"
    problem = read_msr(published(f"msr/throughput/{name}.json"), contiguous=True)
    result = solve(problem, Exact(few_ideals=0))
    assert result.status is Status.OPTIMAL
    assert 1e3 * result.value == pytest.approx(CONTIGUOUS_MS[name], abs=6e-4)


def test_a_proof_in_whole_numbers_is_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rounding loses more than 1e-6 the bound still holds, and the status says OPTIMAL."""
    monkeypatch.setattr("placewright.operators.planners.pipelines.contiguous.RESOLUTION", 2.0**16)
    coarse = 0
    for seed in range(22):
        problem = star(seed, contiguous=True)
        wanted = best_value(problem)
        if wanted == np.inf:
            continue
        result = solve(problem, Exact(few_ideals=0))
        assert result.status is Status.OPTIMAL
        assert result.lower_bound <= wanted <= result.value
        assert result.value == pytest.approx(wanted, rel=20 / 2**16)
        coarse += result.gap > 1e-6
    assert coarse > 2


def test_a_gap_that_rounding_cannot_explain_is_no_proof() -> None:
    """Of the resolution a plan keeps what its gap needs; with a wider gap, nothing."""
    problem = tiny([[2.0, 2.0]] * 2, objective="throughput", communication="star")
    plan = OperatorPlan(np.array([0, 1]))
    assert best_of(problem, [plan], 1.9, 0.2).resolution == pytest.approx(0.1)
    assert best_of(problem, [plan], 1.7, 0.2).resolution == 0.0
    assert best_of(problem, [plan], 3.0, 0.2).resolution == 0.0


def test_layer_bert24_training_without_contiguity() -> None:
    """39.790 ms, proved."""
    problem = read_msr(published("msr/throughput/layer_bert24_training.json"))
    result = solve(problem, "exact", time_limit_s=200)  # 6 s on a quiet machine
    assert result.status is Status.OPTIMAL
    assert 1e3 * result.value == pytest.approx(39.790, abs=6e-4)


@pytest.mark.parametrize(("few_ideals", "contiguous"), [(0, True), (20_000, True), (20_000, False)])
def test_plans_equal_brute_force(few_ideals: int, contiguous: bool) -> None:
    """By stage numbers, by ideals, and without contiguity; or there is no plan at all."""
    planner, found = Exact(few_ideals=few_ideals), 0
    for seed in range(22):
        problem = star(seed, contiguous=contiguous)
        found += equals_brute_force(planner, problem, best_value(problem), 1e-6)
    assert found > 14


def test_memory_that_only_one_plan_keeps() -> None:
    """HiGHS 1.14 proved a tenth more to be least, where cuts were no whole numbers."""
    problem = tiny(
        [[4.0, 5.0], [1.0, 4.0], [1.0, np.inf], [3.0, 4.0], [5.0, 5.0]],
        [(0, 0.0, [1, 3, 4]), (1, 3.0, [2, 3, 4]), (3, 1.0, [4])],
        resident_bytes=[4.0, 1.0, 1.0, 0.0, 6.0],
        memory_bytes=[2.0, 10.0],
        communication="star",
        objective="throughput",
        host_seconds_per_byte=[0.0, 2.16293584136791],
    )
    assert solve(problem, "exact").value == pytest.approx(best_value(problem))


def test_it_comes_back_at_the_deadline() -> None:
    """With the plan of the line, even when there is no time at all."""
    problem = read_msr(published("msr/throughput/layer_gnmt_inference.json"), contiguous=True)
    proposal = Exact()(problem, Context(deadline_s=time.perf_counter()))
    plan = proposal.plan
    assert judge(problem, plan).feasible
    assert not proposal.bound


def test_an_interrupt_hands_the_incumbent_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the solver works: it stops, and the best so far is the plan."""

    class Impatient(programs.threading.Event):  # type: ignore[name-defined,misc]
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is not None and not self.is_set():
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(programs.threading, "Event", Impatient)
    for contiguous, most in ((False, 33.08), (True, 33.04)):
        name = "layer_gnmt_inference"
        problem = read_msr(published(f"msr/throughput/{name}.json"), contiguous=contiguous)
        result = solve(problem, Exact(few_ideals=0))
        assert result.status is Status.INTERRUPTED
        assert 1e3 * result.value <= most


@pytest.mark.parametrize("phase", ["annealed", "by_trios", "best_cuts", "over_ideals"])
def test_an_interrupt_in_any_phase_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Ctrl-C also comes where no solver waits: while one is built or a walk goes on."""

    def pressed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules[Exact.__module__], phase, pressed)
    problem = star(4, memory_bytes=np.full(star(4).m, np.inf))
    result = solve(problem, Exact())
    assert result.status in (Status.INTERRUPTED, Status.OPTIMAL)
    assert judge(problem, result.plan).feasible


def test_an_impossible_bound_is_dropped() -> None:
    """A bound above the plan's own value is a solver's error."""
    problem = tiny([[2.0, 2.0]] * 2, objective="throughput", communication="star")
    plan = OperatorPlan(np.array([0, 1]))
    assert best_of(problem, [plan], 3.0).bound is None
    assert best_of(problem, [plan], 1.5).bound == 1.5
    with pytest.raises(InfeasibleError):
        best_of(problem, [], 1.0)


def test_a_solver_that_is_not_installed_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra by name, and what was used instead."""
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda name: None)
    problem = tiny(
        [[1.0, 1.0]] * 3,
        objective="throughput",
        communication="star",
        resident_bytes=[3.0, 2.0, 3.0],
        memory_bytes=[5.0, 5.0],
    )
    for planner, what in ((Exact(few_ideals=0), "the line's plan"), (Exact(), "a contiguous plan")):
        for contiguous in (True, False):
            proposal = proposal_of(planner(problem.replace(contiguous=contiguous), Context()))
            plan = proposal.plan
            assert judge(problem, plan).value == 2.0
            if not contiguous or planner.few_ideals == 0:
                assert "placewright[exact]" in proposal.note
                assert (what if contiguous else "a contiguous plan") in proposal.note
                assert not proposal.bound


def test_wrong_starts_do_no_harm() -> None:
    """The models start from any plan that fits, here the worst."""
    problem = tiny(
        [[1.0, 1.0, 10.0]] * 6,
        [(i, 0.1, [i + 1]) for i in range(5)],
        objective="throughput",
        communication="star",
        host_seconds_per_byte=[1.0, 1.0, 0.0],
    )
    c = contract(problem, contiguous=False)
    far = time.perf_counter() + 60
    slot, bound, _ = best_cuts(c, np.zeros(6, dtype=np.int64), 6.0, seed=0, deadline_s=far)
    assert slot is not None
    assert bound == pytest.approx(3.1, rel=1e-5)
    line = contract(problem, contiguous=True)
    for start in (None, line_or_none(line, far)):
        found = best_stages(line, start, seed=0, deadline_s=far, workers=1)
        assert found.chain is not None
        assert found.bound_s == pytest.approx(3.1, rel=1e-5)


def test_moves_of_three_improve_a_poor_plan() -> None:
    """Never worse, never out of memory, and on small problems mostly the optimum."""
    hits = tried = 0
    for seed in range(40):
        problem = star(seed)
        wanted = best_value(problem)
        c = contract(problem, contiguous=False)
        kinds = slot_kinds(c)
        slot = np.array([kinds.index(k) for k in c.work_s.argmin(axis=1)])
        before = judge(problem, plan_of(c, slot))
        if not before.feasible:
            continue
        far = time.perf_counter() + 60
        after, _ = by_trios(problem, c, slot, seed=0, deadline_s=far)
        judgement = judge(problem, plan_of(c, after))
        assert judgement.feasible
        assert judgement.value <= before.value
        tried += 1
        hits += judgement.value <= wanted * (1 + 1e-6)
    assert hits == tried > 20
