"""Rules that every planner of samples keeps, and its distance from the optimum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.planning.candidates import Status
from placewright.planning.contract import Context, Proposal, proposal_of
from placewright.planning.solving import solve
from placewright.samples.judge import judge
from placewright.samples.plan import SamplePlan, held_after
from placewright.samples.planners import planners, portfolio
from placewright.samples.problem import REGIMES, Batches, Overlap, Ports, SampleProblem, generate
from tests.samples.tiny import best_of, best_value, random_tiny, tiny

NAMES = list(planners(tiny([1, 2])))


def planned(problem: SampleProblem, name: str) -> Proposal[SamplePlan] | None:
    """The planner's answer, ``None`` where it cannot take the problem or nothing fits."""
    planner = planners(problem)[name]
    if planner.unsupported_reason(problem) is not None:
        return None
    try:
        proposal = proposal_of(planner(problem, Context(judge=judge)))
    except InfeasibleError:
        return None
    assert isinstance(proposal.plan, SamplePlan)
    return proposal


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_valid(name: str) -> None:
    """Counts are whole, nothing is lost, no limit is broken that the start does not break."""
    for seed in range(30):
        problem = random_tiny(seed)
        before, best = problem.hash(), best_of(seed)
        proposal = planned(problem, name)
        assert problem.hash() == before
        if proposal is None:
            continue
        judged = judge(problem, proposal.plan)
        assert held_after(problem, proposal.plan).sum() == problem.samples.sum()
        assert (proposal.bound or 0.0) <= best
        if judged.feasible:
            assert judged.value >= best * (1 - 1e-12)
        else:
            assert (
                np.isinf(best)
                or not judge(problem, planners(problem)["none"](problem, Context())).feasible
            )


@pytest.mark.parametrize("seed", range(30))
def test_ilp_finds_the_best_of_all_plans(seed: int) -> None:
    """On three nodes, in every mode."""
    problem = random_tiny(seed)
    proposal, best = planned(problem, "ilp"), best_of(seed)
    if proposal is None:
        assert np.isinf(best)
    else:
        judged = judge(problem, proposal.plan)
        assert judged.feasible
        assert judged.value == pytest.approx(best, rel=2e-4)


@pytest.mark.parametrize("seed", range(12))
def test_ilp_keeps_the_label_mix(seed: int) -> None:
    """Two nodes, two classes: the best of all plans that keep the mix."""
    rng = np.random.default_rng(seed)
    problem = tiny(
        rng.integers(0, 6, (2, 2)) + 1,
        seconds_per_sample=rng.uniform(0.05, 0.4, 2),
        label_mix=float(rng.uniform(0, 0.3)),
    )
    proposal = planned(problem, "ilp")
    best = best_value(problem)
    if proposal is None:
        assert np.isinf(best)
    else:
        judged = judge(problem, proposal.plan)
        assert judged.violation == ""
        assert (proposal.bound or 0.0) <= best
        assert judged.value == pytest.approx(best, rel=2e-4)


@pytest.mark.parametrize("overlap", [Overlap.STAGGERED, Overlap.HIDDEN])
def test_nic_is_exact(overlap: Overlap) -> None:
    """Only access links: the best of all plans, and a bound that says so."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        send = np.repeat(rng.uniform(0.01, 0.3, (3, 1)), 3, axis=1)
        receive = np.repeat(rng.uniform(0.01, 0.3, (1, 3)), 3, axis=0)
        np.fill_diagonal(send, np.inf)
        np.fill_diagonal(receive, np.inf)
        problem = random_tiny(seed, send_s=send, receive_s=receive, price_s=np.zeros((3, 3)))
        problem = problem.replace(overlap=overlap, batches=Batches.PROPORTIONAL, relay=False)
        proposal, best = planned(problem, "nic"), best_value(problem)
        if proposal is None:
            assert np.isinf(best)
            continue
        judged = judge(problem, proposal.plan)
        assert judged.feasible
        assert judged.value == pytest.approx(best, rel=1e-9)
        assert proposal.bound == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("regime", REGIMES)
def test_lp_is_within_a_percent_of_the_bound(regime: str) -> None:
    """And greedy within ten on average, at 10, 20 and 100 nodes."""
    gaps = []
    for nodes in (10, 20, 100):
        problem = generate(regime, nodes, 3)
        result = solve(problem, "lp")
        assert result.gap <= 0.01
        greedy = solve(problem, "greedy")
        gaps.append(greedy.value / result.lower_bound - 1)
        assert greedy.value <= solve(problem, "none").value
    assert np.mean(gaps) <= 0.1


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("batches", Batches)
def test_lp_rounds_well_in_every_mode(overlap: Overlap, batches: Batches) -> None:
    """Relays, storage, protected samples and prices together."""
    base = generate("moderate", 30, 5)
    rng = np.random.default_rng(0)
    problem = base.replace(
        overlap=overlap,
        batches=batches,
        relay=True,
        storage=np.where(rng.random(30) < 0.5, base.held + 200.0, np.inf),
        keep=(base.samples * 0.2).astype(np.int64),
        price_s=rng.uniform(0, 1e-4, (30, 30)),
    )
    result = solve(problem, "lp")
    assert result.judgement.feasible
    assert result.gap <= 0.02


@pytest.mark.parametrize("overlap", Overlap)
def test_auto_is_never_slower_than_not_moving(overlap: Overlap) -> None:
    """Queued ports make transfers wait; whatever they do, staying is a candidate."""
    for regime in REGIMES:
        problem = generate(regime, 8, 2).replace(overlap=overlap, ports=Ports.QUEUED)
        result = solve(problem, time_limit_s=0.5)
        still = next(c for c in result.candidates if c.planner == "none")
        assert result.value <= still.value
        assert result.lower_bound <= result.value


def test_classes_are_shared_out() -> None:
    """Without a mix classes do not matter, but every move says which it takes."""
    problem = tiny([[30, 10], [0, 4]], keep=np.array([[5, 10], [0, 0]]))
    proposal = planned(problem, "lp")
    assert proposal is not None
    judged = judge(problem, proposal.plan)
    assert judged.feasible
    assert judged.held[0, 1] >= 10
    assert judged.value < judge(problem, SamplePlan(*([np.zeros(0, dtype=np.int64)] * 3))).value


def test_the_same_seed_gives_the_same_plan() -> None:
    """All planners, twice."""
    for name in NAMES:
        first, second = (planned(generate("heavy", 9, 1), name) for _ in range(2))
        if first is not None and second is not None:
            assert first.plan.source.tolist() == second.plan.source.tolist()
            assert first.plan.target.tolist() == second.plan.target.tolist()
            assert first.plan.count.tolist() == second.plan.count.tolist()


def test_auto_asks_the_integer_program_where_it_ends() -> None:
    """Small problems only."""
    assert "ilp" in portfolio(tiny([1, 2]))
    names = portfolio(generate("mild", 40))
    assert "ilp" not in names
    assert names.index("nic") < names.index("greedy")  # at once the optimum, where it applies


def test_ctrl_c_leaves_the_plan_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver stops, and its incumbent is judged as INTERRUPTED."""
    pytest.importorskip("highspy")

    def pressed(work: Callable[[], object], *others: object) -> tuple[object, bool]:
        return work(), True

    monkeypatch.setattr("placewright.solvers.programs.waited", pressed)
    result = solve(tiny([20, 3, 1]), "ilp")
    assert result.status is Status.INTERRUPTED or result.gap <= 1e-6
    assert result.candidates[0].note == "interrupted"
