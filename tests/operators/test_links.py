"""Pairs of devices that can send to each other."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.conformance import random_problem, tiny
from placewright.operators.costs import linked
from placewright.operators.planners.lists.insertion import set_up
from placewright.operators.planners.lists.planners import CPOP, HEFT, PEFT
from placewright.planning.contract import Context, Planner, proposal_of

INF = float("inf")


def test_a_link_has_a_channel_and_both_times() -> None:
    """None within a device, whatever the problem has there."""
    problem = tiny([[1.0] * 3]).replace(
        latency_s=[[0, 1, INF], [1, 0, 1], [1, 1, 0]],
        seconds_per_byte=[[0, 1, 1], [INF, 0, 1], [1, 1, 0]],
        channel=[[0, 0, 0], [0, -1, 0], [0, 0, -1]],
        channel_names=("bus",),
    )
    assert linked(problem).tolist() == [[0, 1, 0], [0, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize("planner", [HEFT, CPOP, PEFT])
def test_a_latency_without_end_is_no_link(planner: Planner) -> None:
    """The same plan as without the channel: an infinite mean would leave no priorities."""
    for seed in range(10):
        problem = random_problem(seed, most_operators=12, most_devices=4)
        cut = np.zeros((problem.m, problem.m), dtype=np.bool_)
        cut[0, -1] = problem.m > 2
        endless = problem.replace(
            compute_s=np.minimum(problem.compute_s, 3.0),
            latency_s=np.where(cut, INF, problem.latency_s),
            memory_bytes=np.full(problem.m, INF),
            colocation=np.arange(problem.n),
            pinned=np.full(problem.n, -1),
        )
        gone = endless.replace(
            seconds_per_byte=np.where(cut, INF, problem.seconds_per_byte),
            channel=np.where(cut, -1, problem.channel),
        )
        assert np.isfinite(set_up(endless).mean_latency_s)
        plans = [proposal_of(planner(p, Context())).plan for p in (endless, gone)]
        assert np.array_equal(plans[0].placement, plans[1].placement)
        assert np.array_equal(plans[0].order, plans[1].order)
