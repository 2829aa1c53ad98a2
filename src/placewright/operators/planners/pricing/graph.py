"""Placement as a PBQP: nodes are colocation groups, options are devices.

    min  sum_g c_g[x_g] + sum_(g,h) C_gh[x_g, x_h]

``c_g`` are run times, ``C_gh`` the transfer times of all tensors between two groups. Pairs of
groups cannot say that a tensor is sent once to several consumers on one device: every group
that reads it pays. `fanout` chooses how much: at 1 each reader pays in full (never less than
the truth), at 0 the readers share one transfer (never more than the truth).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.operators.problem import OperatorProblem
from placewright.operators.structure.costs import linked
from placewright.operators.structure.groups import Groups, groups_of
from placewright.solvers.pbqp import Pbqp


@dataclass(frozen=True, slots=True, eq=False)
class PlacementGraph:
    """Which groups exchange which tensors; depends on no cost and is kept for re-solving.

    Attributes
    ----------
    pairs
        Shape (e, 2): pairs of groups, lower number first.
    use_tensor, use_pair, use_forward
        One entry per tensor and reading group: the tensor, the index of the pair, and whether
        the tensor flows from the pair's first group to its second.
    use_readers
        Groups that read the tensor, beside the one that makes it.
    """

    groups: Groups
    pairs: IntArray
    use_tensor: IntArray
    use_pair: IntArray
    use_forward: BoolArray
    use_readers: IntArray


def placement_graph(problem: OperatorProblem) -> PlacementGraph:
    """Structure of a problem at the level of groups, O(e log e)."""
    groups = groups_of(problem)
    count = len(groups.resident_bytes)
    tensor = problem.consumed
    # Each use as one number, tensor * groups + reading group: several readers in a group are one.
    uses = np.unique(tensor * count + groups.group[problem.consumers])
    tensor, reader = uses // count, uses % count
    maker = groups.group[problem.tensor_producer[tensor]]
    crosses = maker != reader
    tensor, reader, maker = tensor[crosses], reader[crosses], maker[crosses]
    keys = np.minimum(maker, reader) * count + np.maximum(maker, reader)
    pairs, pair = np.unique(keys, return_inverse=True)
    return PlacementGraph(
        groups=groups,
        pairs=np.stack([pairs // count, pairs % count], axis=1),
        use_tensor=tensor,
        use_pair=pair,
        use_forward=maker < reader,
        use_readers=np.bincount(tensor, minlength=problem.t)[tensor],
    )


def placement_pbqp(
    problem: OperatorProblem,
    graph: PlacementGraph,
    costs: FloatArray,
    *,
    fanout: float = 1.0,
    scale: FloatArray | None = None,
) -> Pbqp:
    """The PBQP for given group costs.

    `costs`: shape (groups, m).
    `fanout`: 1: every reader pays for the transfer, 0: readers share it.
    `scale`: shape (t,): factor on the transfer times of each tensor.
    """
    # One at fanout 1, the share 1 / readers at fanout 0.
    weight = graph.use_readers ** (fanout - 1.0)
    if scale is not None:
        weight = weight * scale[graph.use_tensor]
    ahead = _transfers(problem, graph, np.where(graph.use_forward, weight, 0.0))
    back = _transfers(problem, graph, np.where(graph.use_forward, 0.0, weight))
    # A pair's matrix is [device of its first group, device of its second]: what flows back is
    # priced from the second to the first.
    pool = ahead + back.swapaxes(1, 2)
    groups, m = costs.shape
    return Pbqp(
        start=np.arange(groups + 1) * m,
        cost=costs.ravel(),
        ends=graph.pairs,
        matrix=np.arange(len(graph.pairs)) * m * m,
        pool=pool.ravel(),
    )


def _transfers(problem: OperatorProblem, graph: PlacementGraph, weight: FloatArray) -> FloatArray:
    """Shape (e, m, m): weighted transfer times of each pair's uses, ``inf`` without a link."""
    pair = linked(problem)
    reached = pair | np.eye(problem.m, dtype=np.bool_)
    size = weight * problem.tensor_bytes[graph.use_tensor]
    pairs = len(graph.pairs)
    count = np.bincount(graph.use_pair, weight, pairs)[:, None, None]
    moved = np.bincount(graph.use_pair, size, pairs)[:, None, None]
    latency = np.where(pair, problem.latency_s, 0.0)
    per_byte = np.where(pair, problem.seconds_per_byte, 0.0)
    return np.where((count > 0) & ~reached, np.inf, count * latency + moved * per_byte)
