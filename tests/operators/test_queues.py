"""Ready sets against Python's sets."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.numerics.arrays import BoolArray, IntArray
from placewright.numerics.njit import njit_no_refcount
from placewright.operators.queues import clear, include, take_first


@njit_no_refcount
def replay(bits: Any, tops: Any, changed: IntArray, wanted: BoolArray, out: IntArray) -> None:
    """Add what is not negative to the second of two sets, take where it is; then empty it."""
    for x in range(len(changed)):
        if changed[x] >= 0:
            include(bits, tops, 1, changed[x], wanted[x])
        else:
            out[x] = take_first(bits, tops, 1)
    clear(bits, tops, 1)


def test_first_out_is_the_least() -> None:
    """Thousands of additions and removals, also of what is there already or is not wanted."""
    for seed, places in enumerate((1, 63, 64, 65, 4096, 4097, 9000)):
        rng = np.random.default_rng(seed)
        words = -(-places // 64)
        bits = np.zeros((2, words), dtype=np.uint64)
        tops = np.zeros((2, -(-words // 64)), dtype=np.uint64)
        changed = np.where(rng.random(5000) < 0.5, rng.integers(0, places, 5000), -1)
        wanted, out, held = rng.random(5000) < 0.8, np.full(5000, -2), set[int]()
        replay(bits, tops, changed, wanted, out)
        for at, is_wanted, taken in zip(changed.tolist(), wanted, out.tolist(), strict=True):
            if at >= 0 and is_wanted:
                held.add(at)
            elif at < 0:
                assert taken == min(held, default=-1)
                held.discard(taken)
        assert not bits.any()
        assert not tops.any()
