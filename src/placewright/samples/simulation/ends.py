"""From what nodes send, receive and hold to when they end: the formulas of the overlap modes.

With t_i the end of node i's transfers and w_i the end of its training if that began at 0:

- BARRIER    max t + max w
- STAGGERED  max (t + w); with equal batches, where no step can do without anyone, max t + max w
- HIDDEN     max (max t, max w)

Gradient exchange and the price of moving come on top.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.samples.problem import Batches, Duplex, Overlap, SampleProblem


def transfer_s(problem: SampleProblem, out_s: FloatArray, in_s: FloatArray) -> FloatArray:
    """Shape (n,): when each node's transfers have ended, ports never waiting for each other."""
    if problem.duplex is Duplex.HALF:
        return np.add(out_s, in_s)
    return np.maximum(out_s, in_s)


def training_s(problem: SampleProblem, held: IntArray | FloatArray) -> FloatArray:
    """Shape (n,): seconds from the start of training to each node's last step, all epochs."""
    fixed_s = problem.epochs * problem.fixed_s
    if problem.batches is Batches.PROPORTIONAL:
        own: FloatArray = problem.work_s * held + fixed_s
        return own
    equal: FloatArray = _equal_batches_s(problem.work_s, held) + fixed_s.max()
    return equal


def _equal_batches_s(work_s: FloatArray, held: IntArray | FloatArray) -> FloatArray:
    """A step takes as long as the slowest node that still has samples."""
    order = np.argsort(held, kind="stable")
    slowest = np.maximum.accumulate(work_s[order][::-1])[::-1]
    end = np.empty(len(order))
    end[order] = np.cumsum(np.diff(held[order], prepend=0) * slowest)
    return end


def waits_for_all(problem: SampleProblem) -> bool:
    """Whether no node can start before the last transfer."""
    equal = problem.batches is Batches.EQUAL and problem.overlap is Overlap.STAGGERED
    return equal or problem.overlap is Overlap.BARRIER


def node_end_s(problem: SampleProblem, moved_s: FloatArray, trained_s: FloatArray) -> FloatArray:
    """Shape (n,): when each node ends, without gradient exchange."""
    if problem.overlap is Overlap.HIDDEN:
        return np.maximum(moved_s, trained_s)
    start_s = moved_s.max() if waits_for_all(problem) else moved_s
    end: FloatArray = start_s + trained_s
    return end
