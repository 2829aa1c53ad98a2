"""Properties of the instances that other tests use."""

from __future__ import annotations

import numpy as np

from placewright.operators.conformance import named_instances, random_placement, random_problem
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan, check_plan


def test_random_problems_repeat_and_differ() -> None:
    """One seed, one problem; another seed, another."""
    hashes = [random_problem(seed).hash() for seed in range(50)]
    assert hashes == [random_problem(seed).hash() for seed in range(50)]
    assert len(set(hashes)) == 50


def test_random_placements_can_be_played() -> None:
    """They keep every rule, and every pair of devices is linked."""
    for seed in range(200):
        problem = random_problem(seed)
        plan = OperatorPlan(random_placement(problem, np.random.default_rng(seed)))
        check_plan(problem, plan)
        assert np.isfinite(judge(problem, plan).value)


def test_random_problems_have_some_of_everything() -> None:
    """Refusals, pins, groups, memory limits, shared channels, wide tensors, zero times."""
    some = [random_problem(seed) for seed in range(100)]
    assert any(np.isinf(p.compute_s).any() for p in some)
    assert any((p.pinned >= 0).any() for p in some)
    assert any(len(set(p.colocation.tolist())) < p.n for p in some)
    assert any(np.isfinite(p.memory_bytes).any() for p in some)
    assert any(len(p.channel_names) < p.m * (p.m - 1) for p in some)
    assert any((np.diff(p.consumer_offsets) > 2).any() for p in some)
    assert any((p.compute_s == 0).any() for p in some)
    assert any(p.topology.order.tolist() != list(range(p.n)) for p in some)


def test_named_instances_are_small() -> None:
    """Small enough to try every placement."""
    for name, problem in named_instances().items():
        assert problem.m**problem.n <= 100, name
