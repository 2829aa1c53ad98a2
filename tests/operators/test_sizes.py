"""Byte counts in 64 bits: huge limits never bind, uncountable sizes are refused."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.operators.conformance import random_problem, tiny
from placewright.operators.judge import judge
from placewright.operators.planners.search import Search
from placewright.operators.sizes import UNLIMITED, room_bytes
from placewright.planning.contract import Context


def test_a_limit_past_64_bits_is_none() -> None:
    """The same plan as without a limit, not the one of least bytes."""
    for seed in range(3):
        free = random_problem(seed + 20, most_operators=12, most_devices=3)
        free = free.replace(memory_bytes=np.full(free.m, np.inf))
        huge = free.replace(memory_bytes=np.full(free.m, 1e20))
        plans = [Search(effort=2e5, first=2e4)(p, Context(seed=1)).plan for p in (free, huge)]
        assert np.array_equal(plans[0].placement, plans[1].placement)
        assert judge(huge, plans[1]).feasible


def test_room_is_whole_bytes() -> None:
    """Rounded down; nothing above `UNLIMITED`."""
    problem = tiny([[1.0] * 4], memory_bytes=[2.5, 2.0**61, 1e20, np.inf])
    assert room_bytes(problem).tolist() == [2, 2**61, UNLIMITED, UNLIMITED]


@pytest.mark.parametrize(("resident", "tensor"), [(2.0**62, 0.0), (0.0, 2.0**61), (1e300, 1.0)])
def test_what_cannot_be_counted_is_refused(resident: float, tensor: float) -> None:
    """A tensor may be on both devices; the error says by how much."""
    with pytest.raises(InputError, match=r"below 2\^62"):
        tiny([[1.0, 1.0]] * 2, [(0, tensor, [1])], resident_bytes=[resident, 0.0])
    tiny([[1.0, 1.0]] * 2, [(0, 2.0**60, [1])], resident_bytes=[2.0**61 - 1e4, 0.0])
