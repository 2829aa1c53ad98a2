"""chain-dp: the best contiguous stretches, judged; within memory; in auto's portfolio."""

from __future__ import annotations

from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from placewright.capturing.model import capture
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InfeasibleError
from placewright.numerics.arrays import IntArray
from placewright.operators.conformance import tiny
from placewright.operators.costs import groups_of
from placewright.operators.files import read_problem, write_problem
from placewright.operators.judge import OperatorJudge, evaluate_many, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners import portfolio
from placewright.operators.planners.baselines import AccelerateAuto
from placewright.operators.planners.chain_dp import ChainDp, MicroBatches, best_stages, windowed
from placewright.operators.planners.chains import chain_of, units_by_group
from placewright.operators.planners.deployable import Deployable
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context
from placewright.planning.solving import solve
from placewright.profiling.profiler import profile
from tests.operators.planners.module_models import model
from tests.operators.simulation.reference import simulate


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
        model("llama", 3), {"input_ids": torch.zeros(1, 16, dtype=torch.long)}, training=training
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
        result = solve(problem, planner, time_limit_s=4.0)  # kernels are loaded meanwhile
        best = min((c for c in result.candidates if c.fits), key=lambda c: c.value)
        known = Deployable().tolerance(problem, best.plan) if planner == "auto" else 0.0
        assert best.value <= stretches.value
        assert result.value <= (1 + known) * best.value
        if theirs.feasible:
            assert result.value <= theirs.value


def pipeline(parts: int, stages: int = 2, *, memory_bytes: float = np.inf) -> OperatorProblem:
    """Forward and backward of every stage take 1 s; a forward pass keeps 8 bytes for its backward.

    Operators of micro-batch j: forward of stage 0, 1, ..., then backward of the last, ..., of 0.
    """
    passes = 2 * stages
    tensors = []
    for j in range(parts):
        for s in range(stages):
            forward, backward = passes * j + s, passes * j + passes - 1 - s
            if s + 1 < stages:
                tensors += [(forward, 0.0, [forward + 1]), (backward - 1, 0.0, [backward])]
            tensors.append((forward, 8.0, [backward]))
    stage = [min(k, passes - 1 - k) for k in range(passes)] * parts
    return tiny(
        np.ones((passes * parts, stages)).tolist(),
        tensors,
        colocation=stage,
        memory_bytes=np.full(stages, memory_bytes),
        micro_batch=np.repeat(np.arange(1, parts + 1), passes),
        operator_modules=tuple(f"stage{s}" for s in stage),
    )


@pytest.mark.parametrize(("parts", "stages"), [(1, 2), (4, 2), (6, 3)])
def test_equal_stages_take_the_time_of_the_textbook(parts: int, stages: int) -> None:
    """(M + S - 1) forward and backward passes: Huang et al. 2019, arXiv 1811.06965."""
    problem = pipeline(parts, stages)
    plan = solve(problem, "micro-batches", time_limit_s=60).plan
    assert judge(problem, plan).value == 2.0 * (parts + stages - 1)
    assert sorted(set(plan.placement.tolist())) == list(range(stages if parts > 1 else 1)) or (
        parts == 1
    )


@pytest.mark.parametrize("window", [1, 2, 3])
def test_memory_bounds_how_many_are_in_flight(window: int) -> None:
    """With room for w activations the first stage holds w; alone they follow one another."""
    problem = pipeline(6, memory_bytes=8.0 * window)
    found = judge(problem, MicroBatches()(problem, Context()).plan)
    assert found.feasible
    assert found.value == (24.0 if window == 1 else 14.0)
    schedules = dict(windowed(OperatorJudge(problem), np.array([0, 1, 1, 0] * 6)))
    assert judge(problem, schedules[window]).peak_bytes[0] == 8.0 * window


def test_without_an_order_the_oldest_micro_batch_comes_first() -> None:
    """Rule O4, as in the reference; on one device memory is that of one micro-batch."""
    problem = pipeline(5)
    for place in ([0] * 20, [0, 1, 1, 0] * 5):
        plan = OperatorPlan(np.array(place))
        found, wanted = judge(problem, plan), simulate(problem, plan)
        assert found.value == wanted.value
        assert dict(enumerate(found.op_start_s.tolist())) == dict(wanted.start_s)
    assert judge(problem, OperatorPlan(np.zeros(20, dtype=int))).peak_bytes[0] == 16.0


def test_micro_batches_are_kept_in_files(tmp_path: Path) -> None:
    """And count in the hash where there are any."""
    problem = pipeline(2)
    again = read_problem(write_problem(problem, tmp_path / "p.json"))
    assert again.hash() == problem.hash()
    assert problem.replace(micro_batch=np.zeros(problem.n, dtype=int)).hash() != problem.hash()


def test_a_device_that_cannot_run_one_stage_can_run_a_later_one() -> None:
    """What is pinned to one device leaves the rest of the chain to the others."""
    problem = pipeline(2)
    problem = problem.replace(pinned=np.where(problem.colocation == 0, 0, -1))
    groups = groups_of(problem)
    line = chain_of(problem, groups, units_by_group(problem, groups))
    found = best_stages(problem, line, (0, 1))
    assert found is not None
    assert (found[0], found[1].tolist()) == (4.0, [0, 1])
    assert best_stages(problem, line, (1, 0)) is None


def test_a_step_without_them_is_left_to_others() -> None:
    """By name of what is missing."""
    plain = tiny([[1.0, 1.0]])
    assert MicroBatches().unsupported_reason(plain) == "the step has no micro-batches"


def test_devices_that_can_run_nothing_take_no_place_in_the_pipeline() -> None:
    """However many of them come first."""
    problem = pipeline(2)
    barred = np.full((problem.n, 5), np.inf)
    problem = tiny(
        np.hstack([barred, problem.compute_s]).tolist(),
        micro_batch=problem.micro_batch,
        operator_modules=problem.operator_modules,
        colocation=problem.colocation,
    )
    plan = MicroBatches()(problem, Context()).plan
    assert set(plan.placement.tolist()) <= {5, 6}


def test_numbers_of_micro_batches_may_have_gaps() -> None:
    """Windows are as many as there are micro-batches, and the schedules those without gaps."""
    problem = pipeline(3)
    place = problem.colocation
    gaps = problem.replace(micro_batch=problem.micro_batch**2)
    plans = [
        [p.order.tolist() for _, p in windowed(OperatorJudge(q), place)] for q in (problem, gaps)
    ]
    assert plans[0] == plans[1]
    assert len(plans[0]) == 3


def test_micro_batches_of_a_graph_without_modules_in_any_order() -> None:
    """Such as one built by hand: the last operator of each micro-batch comes first."""
    problem = tiny(
        np.ones((4, 2)).tolist(),
        [(1, 1.0, [0]), (3, 1.0, [2])],
        micro_batch=[1, 1, 2, 2],
    )
    assert solve(problem, "micro-batches").value == 2.0
