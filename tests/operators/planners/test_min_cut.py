"""Minimum cuts, for problems with serial execution."""

from __future__ import annotations

import math
import sys
from itertools import product

import numpy as np
import pytest

from placewright.errors import InfeasibleError
from placewright.operators.conformance import random_placement, random_problem
from placewright.operators.costs import groups_of
from placewright.operators.judge import evaluate_many, judge
from placewright.operators.planners.min_cut import (
    SINK,
    SOURCE,
    FlowNetwork,
    MinCut,
    min_cut,
    serial_costs,
    swaps,
    two_devices,
)
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context

FREE = np.inf


def serial(seed: int, devices: int, operators: int = 7) -> OperatorProblem:
    """A random serial problem without memory limits."""
    for shift in range(1000):
        p = random_problem(seed + 1000 * shift, most_operators=operators, most_devices=devices)
        if p.m == devices:
            break
    return p.replace(overlap="serial", memory_bytes=np.full(p.m, np.inf))


def best_value(p: OperatorProblem) -> float:
    """The judge's least value over all placements that keep the rules."""
    groups = groups_of(p)
    choices = [np.flatnonzero(row).tolist() for row in groups.allowed]
    rows = np.array(list(product(*choices)))[:, groups.group]
    return float(evaluate_many(p, rows)[0].min())


@pytest.mark.parametrize("seed", range(60))
def test_two_devices_are_exact(seed: int) -> None:
    """Brute force on the judge; tensors with several readers, groups, pins, refusals."""
    p = serial(seed, devices=2)
    proposal = MinCut()(p, Context(judge=judge))
    plan = proposal.plan
    best = best_value(p)
    assert judge(p, plan).value == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert proposal.bound == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert proposal.bound <= best * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_costs_are_the_judges(seed: int) -> None:
    """Compute and transfers of random placements add up to the judge's value."""
    p = serial(seed, devices=1 + seed % 4, operators=10)
    groups, rng = groups_of(p), np.random.default_rng(seed)
    costs = serial_costs(p, groups)
    place = random_placement(p, rng)
    assert costs.total_s(place[groups.first]) == pytest.approx(
        float(evaluate_many(p, place)[0][0]), rel=1e-12
    )


@pytest.mark.parametrize("seed", range(40))
def test_exchanges_never_harm_and_bounds_hold(seed: int) -> None:
    """Three and four devices: at most the start, at least the optimum, the bound below both."""
    p = serial(seed, devices=3 + seed % 2, operators=6)
    groups = groups_of(p)
    costs = serial_costs(p, groups)
    start = random_placement(p, np.random.default_rng(seed))[groups.first]
    best = best_value(p)
    totals = [costs.total_s(place) for place in swaps(costs, start, FREE)]
    assert totals == sorted(totals, reverse=True)
    assert best * (1 - 1e-9) <= totals[-1] <= totals[0] == costs.total_s(start)
    proposal = MinCut()(p, Context(judge=judge))
    plan = proposal.plan
    assert proposal.bound <= best * (1 + 1e-9)
    assert judge(p, plan).value >= best * (1 - 1e-9)


def test_what_no_link_joins_is_refused() -> None:
    """Pinned to two devices without a link."""
    p = serial(3, devices=2)
    costs = serial_costs(p, groups_of(p))
    costs.compute_s[0] = np.inf
    with pytest.raises(InfeasibleError, match="link"):
        two_devices(costs)


def test_ctrl_c_while_devices_swap_keeps_where_they_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the PBQP; without one nothing is kept."""

    def pressed(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules[swaps.__module__], "exchange", pressed)
    p = serial(3, devices=3)
    proposal = MinCut()(p, Context())
    plan = proposal.plan
    assert proposal.interrupted
    assert judge(p, plan).feasible
    with pytest.raises(KeyboardInterrupt):
        MinCut()(serial(3, devices=2), Context())


def cut_cost(network: FlowNetwork, side: list[bool]) -> float:
    """What the arcs from the source's side to the other cost."""
    arcs = zip(network.tail, network.head, network.capacity, strict=True)
    return sum(c for a, b, c in arcs if side[a] and not side[b])


@pytest.mark.parametrize("seed", range(30))
def test_no_cut_is_cheaper(seed: int) -> None:
    """All cuts of small random networks, some arcs forbidden."""
    rng = np.random.default_rng(seed)
    network = FlowNetwork()
    nodes = [SOURCE, SINK, *(network.node() for _ in range(6))]
    for _ in range(int(rng.integers(0, 16))):
        a, b = rng.choice(nodes, 2, replace=False).tolist()
        network.arc(a, b, math.inf if rng.random() < 0.15 else float(rng.random()))
    side, error = min_cut(network)
    cuts = [[True, False, *rest] for rest in product([True, False], repeat=6)]
    best = min(cut_cost(network, c) for c in cuts)
    if math.isfinite(best):
        assert cut_cost(network, side.tolist()) <= best + error + 1e-12
        assert error < 1e-9
    else:
        assert math.isinf(error)
