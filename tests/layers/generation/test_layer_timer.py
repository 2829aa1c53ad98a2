"""What is made of measured seconds of layers, on numbers that a busy machine gives."""

from __future__ import annotations

import numpy as np

from placewright.layers.generation.layer_timer import _block_s


def test_a_block_takes_time_whatever_else_runs() -> None:
    """Five blocks after a visit of 1 s; room for one or none; one that was held up."""
    one_s, more_s = np.array([3.0, 3.0, 3.0, 12.0]), np.array([11.0, 3.1, 3.1, 10.0])
    found = _block_s(one_s, more_s, np.array([5, 1, 0, 5]))
    assert found.tolist() == [2.0, 3.1, 3.1, 2.0]
