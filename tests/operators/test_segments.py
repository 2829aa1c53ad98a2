"""What is between two operators takes as long as said, wherever they are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from placewright.operators.bounds import bounds
from placewright.operators.conformance import tiny
from placewright.operators.problem import Links, OperatorProblem
from placewright.operators.relaxed_bound import followers
from placewright.operators.segments import Segments
from tests.operators.test_bounds import all_values


def found(problem: OperatorProblem) -> Segments:
    """Of a problem."""
    return Segments.of(problem, followers(problem))


def branches(transfer_s: int, **changes: object) -> OperatorProblem:
    """a, then b, c and d of two seconds each, then e; two equal devices."""
    return tiny(
        [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0], [2.0, 2.0], [1.0, 1.0]],
        [(0, transfer_s, [1, 2, 3]), *((i, transfer_s, [4]) for i in (1, 2, 3))],
        **changes,
    )


@pytest.mark.parametrize(("transfer_s", "bound_s"), [(0, 4.0), (1, 5.0), (2, 6.0), (9, 8.0)])
def test_branches_that_are_not_worth_sending_all_count(transfer_s: int, bound_s: float) -> None:
    """On one device they take six seconds; else one transfer, where the last is elsewhere, too."""
    problem = branches(transfer_s)
    assert found(problem).bound_s == bound_s
    assert bound_s <= min(all_values(problem))


def test_ends_on_two_devices_need_one_transfer() -> None:
    """The last operator may be elsewhere itself."""
    problem = branches(3.0, pinned=[0, -1, -1, -1, 1])
    assert found(problem).bound_s == 1.0 + 5.0 + 1.0
    assert min(all_values(problem)) >= 7.0


def test_an_operator_that_one_device_cannot_run_has_to_be_sent() -> None:
    """So much longer is the way, but never without an end."""
    inf = float("inf")
    problem = tiny(
        [[1.0, inf], [1.0, 1.0], [inf, 1.0], [1.0, inf]],
        [(0, 1.0, [1, 2]), (1, 1.0, [3]), (2, 1.0, [3])],
    )
    assert found(problem).bound_s <= min(all_values(problem))
    assert np.isfinite(found(problem).bound_s)


def layered(seed: int) -> OperatorProblem:
    """Layers of one to three operators, some of which skip layers, on two or three devices."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 4))
    ends = np.minimum(np.cumsum(rng.integers(1, 4, 9)), 9 if m == 2 else 7)
    layer = [list(range(a, b)) for a, b in zip([0, *ends[:-1]], ends, strict=True) if a < b]
    readers: dict[int, set[int]] = {}
    for before, after in pairwise(layer):
        for c in after:
            makers = [p for p in before if rng.random() < 0.8] or before[:1]
            for p in makers:
                readers.setdefault(p, set()).add(c)
    if len(layer) > 2 and rng.random() < 0.5:
        readers.setdefault(layer[0][0], set()).add(layer[-1][0])
    n, each = layer[-1][-1] + 1, float(rng.choice([0.5, 2.0, 6.0, 12.0]))
    alike = np.repeat(rng.integers(1, 6, (n, 1)), m, axis=1) * rng.choice([1, 1, 2], (1, m))
    compute = rng.integers(0, 6, (n, m)) if rng.random() < 0.5 else alike
    tensors = [(p, each * int(rng.integers(0, 3)), sorted(c)) for p, c in readers.items()]
    links = list(Links)[seed % 2]
    return tiny(compute.astype(float).tolist(), tensors, links=links, overlap="parallel")


def test_no_plan_beats_them() -> None:
    """Every placement of small problems; often they are the best there is."""
    longer = best = 0
    for seed in range(120):
        problem = layered(seed)
        least, bound_s = min(all_values(problem)), found(problem).bound_s
        assert bound_s <= least * (1 + 1e-9), seed
        longer += bound_s > bounds(problem)["ceft"] * (1 + 1e-9)
        best += bound_s >= least * (1 - 1e-9)
    assert longer > 20
    assert best > 20
