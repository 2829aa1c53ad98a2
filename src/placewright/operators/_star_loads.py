"""Throughput of a plan whose transfers go through host memory (star).

The load of device d is its compute plus, for every tensor that some operators on d and some
elsewhere touch (make or read), bytes * host_seconds_per_byte[d], once: a tensor that leaves d
leaves once, one that enters enters once, and none does both. Sums run over operators, then over
tensors, in input order. Resident bytes are what a device must hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.problem import OperatorProblem


@dataclass(frozen=True, slots=True, eq=False)
class StarLoads:
    """Seconds per sample on each device, shape (m,); incoming and outgoing tensors, (t, m)."""

    compute_s: FloatArray
    transfer_s: FloatArray
    entering: BoolArray
    leaving: BoolArray

    @property
    def load_s(self) -> FloatArray:
        """Compute and transfers."""
        return self.compute_s + self.transfer_s


def star_loads(problem: OperatorProblem, placement: IntArray) -> StarLoads:
    """What each device has to do per sample."""
    entering, leaving = _crossings(problem, placement)
    took = problem.compute_s[np.arange(problem.n), placement]
    tensor, device = np.nonzero(entering | leaving)
    paid = problem.tensor_bytes[tensor] * problem.host_seconds_per_byte[device]
    return StarLoads(
        compute_s=np.bincount(placement, took, minlength=problem.m).astype(np.float64),
        transfer_s=np.bincount(device, paid, minlength=problem.m).astype(np.float64),
        entering=entering,
        leaving=leaving,
    )


def _crossings(p: OperatorProblem, placement: IntArray) -> tuple[BoolArray, BoolArray]:
    """Shape (t, m) each: which tensors enter and which leave a device."""
    tensor = np.repeat(np.arange(p.t), np.diff(p.consumer_offsets))
    home, reader = placement[p.tensor_producer], placement[p.consumers]
    away = reader != home[tensor]
    entering = np.zeros((p.t, p.m), dtype=np.bool_)
    entering[tensor[away], reader[away]] = True
    leaving = np.zeros((p.t, p.m), dtype=np.bool_)
    leaving[tensor[away], home[tensor[away]]] = True
    return entering, leaving
