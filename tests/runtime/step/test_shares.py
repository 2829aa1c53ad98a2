"""Devices that share a process run in the predicted order."""

from __future__ import annotations

import itertools

from placewright.runtime.step.partition import partition
from placewright.runtime.step.shares import shares
from tests.runtime.chain import diamond


def test_a_share_keeps_the_order_of_the_whole() -> None:
    """Every placement of the diamond on three devices in every layout of two processes."""
    graph, _ = diamond()
    order = [0, 2, 1, 3]
    for placement in itertools.product(range(3), repeat=4):
        parts = partition(graph, placement, order, 3)
        for processes in itertools.product(range(2), repeat=3):
            if max(processes) < len(set(processes)):
                every_share = shares(parts, order, processes)
                for rank, share in enumerate(every_share):
                    steps = [iter(part.steps) for part in share.parts]
                    operators = [next(steps[k]).operator for k in share.turns]
                    assert operators == [i for i in order if processes[placement[i]] == rank]
                    assert [processes[part.device] for part in share.parts] == [rank] * len(steps)
