"""Copied stages on heterogeneous devices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.conformance import tiny
from placewright.operators.judge import OperatorJudge, judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.copied_stages import CopiedStages, groupings
from placewright.operators.problem import OperatorProblem
from placewright.operators.streaming.prediction import DEALT
from placewright.planning.contract import Context


def problem(seed: int, operators: int = 4, memory: float = 100.0) -> OperatorProblem:
    """A chain of operators of random costs on four devices of random speeds."""
    rng = np.random.default_rng(seed)
    speeds = rng.uniform(1.0, 3.0, 4)
    rows = [(w * speeds).tolist() for w in rng.uniform(1.0, 4.0, operators)]
    chain = [(k, float(rng.uniform(0.0, 0.2)), [k + 1]) for k in range(operators - 1)]
    made = tiny(rows, chain, latency_s=0.01, objective="throughput", pipeline=DEALT)
    return made.replace(resident_bytes=np.full(operators, 10.0), memory_bytes=np.full(4, memory))


def brute_force(instance: OperatorProblem) -> float:
    """The best value of every chain of stages on all of the devices."""
    best, known, rules = np.inf, set(), OperatorJudge(instance)
    for groups in groupings(instance):
        leader = np.arange(instance.m)
        for own in groups:
            leader[list(own)] = own[0]
        homes = np.array([own[0] for own in groups])
        for stage in product(range(len(groups)), repeat=instance.n):
            home = homes[list(stage)]
            used = _used(leader, home)
            key = (*home.tolist(), *used.tolist())
            if list(stage) == sorted(stage) and key not in known:
                known.add(key)
                found = rules(OperatorPlan(home, replica_of=used))
                best = min(best, found.value if found.feasible else np.inf)
    return best


def _used(leader: np.ndarray, homes: np.ndarray) -> np.ndarray:
    """Copies of stages that have operators alone."""
    own = np.arange(len(leader))
    return np.where(np.isin(leader, homes), leader, own)


@pytest.mark.parametrize("memory", [100.0, 31.0])
@pytest.mark.parametrize("seed", range(4))
def test_chains_are_as_good_as_the_best_of_all(seed: int, memory: float) -> None:
    """Against brute force: with room for the whole model on every device, and without."""
    instance = problem(seed, memory=memory)
    found = judge(instance, CopiedStages()(instance, Context()))
    assert found.feasible
    assert found.value <= 1.05 * brute_force(instance)


def test_a_model_that_no_device_can_have_is_copied_in_parts() -> None:
    """Two stages at least; with too little memory for any chain there is no plan."""
    plan = CopiedStages()(problem(1, memory=31.0), Context())
    assert plan.replica_of is not None
    assert len(np.unique(plan.placement)) > 1
    assert (plan.replica_of != np.arange(4)).any()
    with pytest.raises(InfeasibleError, match="no chain of stages"):
        CopiedStages()(problem(1, memory=5.0), Context())


def test_groupings_use_every_device_once() -> None:
    """All of them where devices are few, neighbours by speed where they are many."""
    few = list(groupings(problem(0)))
    assert len(set(few)) == len(few) == 1 + (2**4 - 2) + (3**4 - 3 * 2**4 + 3)
    assert all(sorted(d for own in groups for d in own) == list(range(4)) for groups in few)
    many = list(groupings(tiny([[1.0, 3.0, 2.0, 5.0, 4.0, 6.0]], [], objective="throughput")))
    assert len(set(many)) == len(many) == 1 + 2 * 5 + 6 * 10
    assert ((4, 3, 5), (0, 2, 1)) in many
    assert ((0, 1), (2, 4, 3, 5)) not in many


def test_other_pipelines_are_unsupported() -> None:
    """Anything else is refused with a reason."""
    instance = problem(0)
    assert CopiedStages().unsupported_reason(instance) is None
    pinned = instance.replace(pinned=np.array([0, -1, -1, -1]))
    assert "pinned" in str(CopiedStages().unsupported_reason(pinned))
    assert "contiguous" in str(CopiedStages().unsupported_reason(instance.replace(contiguous=True)))
