"""A problem of fewer nodes, of what is where now, with what has been measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.samples.problem import SampleProblem

PER_NODE = ("seconds_per_sample", "fixed_s", "storage")
PER_PAIR = ("send_s", "receive_s", "latency_s", "price_s")


def subset(problem: SampleProblem, nodes: Sequence[int], samples: IntArray) -> SampleProblem:
    """`problem` with some of its nodes, which hold `samples` of shape (nodes, k) now."""
    chosen = np.array(nodes)
    fields = {key: getattr(problem, key)[chosen] for key in PER_NODE}
    fields |= {key: getattr(problem, key)[np.ix_(chosen, chosen)] for key in PER_PAIR}
    return problem.replace(
        node_names=tuple(problem.node_names[i] for i in nodes),
        samples=samples,
        keep=np.minimum(problem.keep[chosen], samples),
        **fields,
    )


def for_training(problem: SampleProblem, nodes: Sequence[int], samples: IntArray) -> SampleProblem:
    """What training knows of the nodes that hold `samples`: speeds, and nothing of moves.

    Nodes that no link joins train together all the same, whatever they hold.
    """
    free = np.zeros((problem.n, problem.n))
    ground = problem.replace(
        send_s=free,
        receive_s=free,
        latency_s=free,
        price_s=free,
        storage=np.full(problem.n, np.inf),
        keep=np.zeros_like(problem.keep),
    )
    return subset(ground, nodes, samples)


def with_rates(problem: SampleProblem, sample_s: FloatArray) -> SampleProblem:
    """`problem` with links as slow as measured; both ports alike."""
    known = np.isfinite(sample_s)
    return problem.replace(
        send_s=np.where(known, sample_s, problem.send_s),
        receive_s=np.where(known, sample_s, problem.receive_s),
    )
