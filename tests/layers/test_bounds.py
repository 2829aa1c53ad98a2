"""Bounds of layer problems with incomplete tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placewright.layers.bounds import bounds
from placewright.layers.conformance import tiny
from placewright.layers.judge import judge
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.problem import LayerProblem


def one_worker(times_s: list[float], sizes: list[float], batch: int) -> LayerProblem:
    """Two layers on one worker, with these times by size of the micro-batch."""
    table = np.repeat(np.array(times_s)[:, None], 2, axis=1)[None, None]
    wide = np.full((2, 1), 8.0)
    return tiny(
        [1.0, 1.0],
        1,
        degrees=(1,),
        parameters=wide,
        output_bytes=wide,
        activation_bytes=wide,
        sizes=sizes,
        forward_s=table,
        backward_s=table,
        global_batch=batch,
    )


@pytest.mark.parametrize(
    ("times_s", "batch"),
    [
        ([math.nan, 8.0], 2),  # smaller shares than were measured take less
        ([8.0, 4.0], 2),  # larger ones than were measured are no faster than the largest
        ([8.0, 4.0], 40),
        ([2.0, 9.0], 4),
    ],
)
def test_no_plan_beats_a_bound(times_s: list[float], batch: int) -> None:
    """Neither below the smallest size that was measured nor above the largest."""
    p = one_worker(times_s, [1.0, 8.0], batch)
    for micro_batches in (m for m in range(1, batch + 1) if batch % m == 0):
        stage = Stage(0, 1, (Replica((0,), batch // micro_batches),))
        value = judge(p, LayerPlan((stage,), micro_batches)).value
        assert all(bound <= value for bound in bounds(p).values())


def test_passes_may_be_measured_at_different_sizes() -> None:
    """The forward pass of one sample is fast; the backward pass was measured on four only."""
    p = one_worker([0.01, 10.0], [1.0, 4.0], 4)
    backward = p.backward_s.copy()
    backward[:, :, 0] = math.nan
    backward[:, :, 1] = 1.0
    p = p.replace(backward_s=backward)
    value = judge(p, LayerPlan((Stage(0, 1, (Replica((0,), 1),)),), 4)).value
    assert value == pytest.approx(4 * 2 * (0.01 + 0.25))
    assert all(bound <= value for bound in bounds(p).values())
