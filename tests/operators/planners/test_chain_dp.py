"""chain-dp: the best contiguous stretches, judged; within memory; in auto's portfolio."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
import torch

from placewright.capturing.model import capture
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InfeasibleError
from placewright.numerics.arrays import IntArray
from placewright.operators.conformance import tiny
from placewright.operators.judge import evaluate_many, judge
from placewright.operators.planners import portfolio
from placewright.operators.planners.accelerate_auto import AccelerateAuto
from placewright.operators.planners.chain_dp import ChainDp
from placewright.operators.planners.deployable import Deployable
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context
from placewright.planning.solving import solve
from placewright.profiling.profiler import profile
from placewright.testing import PlannerConformance
from tests.operators.planners.module_models import model


class TestChainDp(PlannerConformance):
    """Contiguous stretches."""

    named = "chain-dp"


def contiguous(n: int, m: int) -> IntArray:
    """Every placement of n operators in a line with one stretch per device."""
    places = [
        np.repeat(devices, np.diff([0, *inner, n]))
        for count in range(1, min(n, m) + 1)
        for devices in permutations(range(m), count)
        for inner in combinations(range(1, n), count - 1)
    ]
    return np.array(places)


def random_chain(seed: int) -> OperatorProblem:
    """Up to seven operators in a line on two or three devices."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, 8)), int(rng.integers(2, 4))
    return tiny(
        rng.integers(1, 9, (n, m)).tolist(),
        [(i, float(rng.integers(1, 9)), [i + 1]) for i in range(n - 1)],
        latency_s=float(rng.integers(0, 3)),
        resident_bytes=rng.integers(20, 60, n),
    )


@pytest.mark.parametrize("seed", range(25))
def test_a_chain_is_cut_at_the_best_places(seed: int) -> None:
    """As good as the best of all contiguous placements by the judge."""
    problem = random_chain(seed)
    values, _ = evaluate_many(problem, contiguous(problem.n, problem.m))
    assert judge(problem, ChainDp()(problem, Context())).value == pytest.approx(values.min())


@pytest.mark.parametrize("seed", range(25))
def test_stretches_fit_the_memories(seed: int) -> None:
    """A plan that fits wherever weights and the largest tensors fit, never better than the best."""
    problem = random_chain(seed)
    room = problem.resident_bytes.sum() * 0.7
    problem = problem.replace(memory_bytes=np.full(problem.m, room))
    values, over = evaluate_many(problem, contiguous(problem.n, problem.m))
    with_slack = problem.replace(memory_bytes=problem.memory_bytes - 20)
    if (evaluate_many(with_slack, contiguous(problem.n, problem.m))[1] == 0).any():
        judgement = judge(problem, ChainDp()(problem, Context()))
        assert judgement.feasible
        assert judgement.value >= values[over == 0].min() * (1 - 1e-12)


def test_what_fits_nowhere_is_an_error() -> None:
    """Weights larger than every memory."""
    problem = tiny([[1.0, 1.0]] * 2, [(0, 1.0, [1])], resident_bytes=[9, 9], memory_bytes=[5, 5])
    with pytest.raises(InfeasibleError, match="stretches"):
        ChainDp()(problem, Context())


def test_many_devices_and_operators_stay_cheap() -> None:
    """Eight of twelve devices take part, and long chains are cut in fewer places."""
    n = 3000
    problem = tiny(
        [[1.0 + d for d in range(12)]] * n,
        [(i, 1.0, [i + 1]) for i in range(n - 1)],
        resident_bytes=np.ones(n),
        memory_bytes=np.full(12, 400.0 + n / 8),
    )
    plan = ChainDp()(problem, Context())
    used = set(plan.placement.tolist())
    assert judge(problem, plan).feasible
    assert used <= set(range(8))
    assert int((np.diff(plan.placement) != 0).sum()) == len(used) - 1


def test_work_bounds_how_many_devices_take_part() -> None:
    """Of 40 asked for, which would make 2^40 subsets; with little work three are left."""
    m = 40
    problem = tiny(
        [[1.0] * m] * 60,
        [(i, 1.0, [i + 1]) for i in range(59)],
        latency_s=0.0,
        resident_bytes=np.ones(60),
        memory_bytes=np.full(m, 35.0),
    )
    assert judge(problem, ChainDp(devices=m)(problem, Context())).feasible
    few = ChainDp(devices=m, work=1e3)(problem, Context())
    assert judge(problem, few).feasible
    assert len(set(few.placement.tolist())) <= 3


@pytest.mark.parametrize("training", [False, True])
def test_auto_is_never_above_accelerates_map(training: bool) -> None:
    """On different GPUs and a CPU, where layers have to be shared out; chain-dp has a plan, too."""
    graph = capture(
        model("llama"), {"input_ids": torch.zeros(1, 16, dtype=torch.long)}, training=training
    )
    size = graph.resident_bytes
    room = {"gpu-a": 0.5 * size, "gpu-b": 0.7 * size, "cpu-a": 9.0 * size}
    devices = tuple(
        Device(n, kind=n[:3], memory_bytes=b, peak_flops=1e11 * (k + 1), memory_bandwidth=1e10)
        for k, (n, b) in enumerate(room.items())
    )
    problem = profile(graph, Cluster(devices), method="analytic")
    assert list(portfolio(problem))[7:9] == ["accelerate-auto", "chain-dp"]
    theirs = judge(problem, AccelerateAuto()(problem, Context()))
    stretches = judge(problem, ChainDp()(problem, Context()))
    assert stretches.feasible
    assert theirs.feasible or training
    for planner in ("auto(tolerance=0)", "auto"):
        result = solve(problem, planner, time_limit_s=0.4)
        best = min((c for c in result.candidates if c.fits), key=lambda c: c.value)
        known = Deployable().tolerance(problem, best.plan) if planner == "auto" else 0.0
        assert best.value <= stretches.value
        assert result.value <= (1 + known) * best.value
        if theirs.feasible:
            assert result.value <= theirs.value
