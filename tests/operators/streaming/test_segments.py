"""Segments: parts of a stream that run without waiting."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.operators.instances import random_placement, random_problem, tiny
from placewright.operators.problem import OperatorProblem
from placewright.operators.streaming.segments import segments_of


def _edges(problem: OperatorProblem) -> list[tuple[int, int]]:
    tensor = np.repeat(np.arange(problem.t), np.diff(problem.consumer_offsets))
    return list(zip(problem.tensor_producer[tensor], problem.consumers, strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_no_segment_waits_for_a_later_one(seed: int) -> None:
    """Every operator once; what crosses devices goes to a later segment."""
    problem = random_problem(seed)
    placement = random_placement(problem, np.random.default_rng(seed))
    found = segments_of(problem, placement)
    assert sorted(found.order.tolist()) == list(range(problem.n))
    position = np.argsort(found.order)
    assert (found.device[found.segment] == placement).all()
    assert (np.diff(found.segment[found.order]) >= 0).all()
    for before, after in _edges(problem):
        assert position[before] < position[after]
        if placement[before] != placement[after]:
            assert found.segment[before] < found.segment[after]
    for device, runs in enumerate(found.lengths(problem.m)):
        assert sum(runs) == (placement == device).sum()


def test_a_chain_of_devices_has_one_segment_each() -> None:
    """Whatever skips a device: 0 -> 1 -> 2 with a tensor from 0 to 2."""
    problem = tiny([[1, 1, 1]] * 4, [(0, 1, (1, 3)), (1, 1, (2,)), (2, 1, (3,))])
    found = segments_of(problem, np.array([2, 0, 0, 1]))
    assert found.device.tolist() == [2, 0, 1]
    assert found.segment.tolist() == [0, 1, 1, 2]


def test_a_device_that_is_come_back_to_has_two() -> None:
    """Between them it can work on another sample."""
    problem = tiny([[1, 1]] * 3, [(0, 1, (1, 2)), (1, 1, (2,))])
    found = segments_of(problem, np.array([0, 1, 0]))
    assert found.device.tolist() == [0, 1, 0]
    assert found.lengths(2) == ((1, 1), (1,))
