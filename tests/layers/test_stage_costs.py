"""Passes of a micro-batch: times between, below and above the sizes that were measured."""

from __future__ import annotations

import numpy as np

from placewright.layers.conformance import tiny
from placewright.layers.stage_costs import pass_s


def test_more_samples_never_take_less_than_the_largest_size() -> None:
    """The last interval may fall by noise: its slope does not lead to times below 0."""
    table = np.array([2.0, 1.0])[None, None, :, None] * np.ones((1, 1, 2, 1))
    p = tiny(
        [1.0],
        1,
        degrees=(1,),
        parameters=np.ones((1, 1)),
        output_bytes=np.ones((1, 1)),
        activation_bytes=np.ones((1, 1)),
        sizes=[1.0, 2.0],
        forward_s=table,
        backward_s=table,
    )
    assert [pass_s(p, 0, 1, b)[0][0] for b in (1.0, 1.5, 2.0, 16.0)] == [2.0, 1.5, 1.0, 1.0]
